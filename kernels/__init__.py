"""The project's GPU kernels. Beside each kernel is PyTorch code that defines its result.

The package needs torch. Launching a kernel also needs triton, but importing the package needs neither triton nor a CUDA
device.
"""
