"""The project's GPU kernels, each beside the PyTorch code that defines what it computes.

Imports torch, and triton where it is installed; importing this package needs neither triton nor a CUDA device.
"""
