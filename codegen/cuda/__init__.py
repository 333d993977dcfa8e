"""A CUDA library for NVIDIA GPUs, by Apache TVM and nvcc.

The families of kernels that all targets share, bound to threads of a GPU, and kernels of its own for tensor cores.
"""
