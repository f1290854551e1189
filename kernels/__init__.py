"""The project's GPU kernels, each beside the PyTorch code that defines its result.

Needs torch, and triton to launch a kernel; importing the package needs neither triton nor a CUDA device.
"""
