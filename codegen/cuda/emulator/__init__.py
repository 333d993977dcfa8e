"""Running CUDA kernels without a GPU: the PTX that machine code is made of, as C++, on threads that are fibers.

It finds what a GPU would compute, and what it would leave undefined: barriers left out, copies that nobody waited for,
lanes that part, memory that is not aligned. It knows nothing of speed, of machine code, nor of races between blocks.
"""
