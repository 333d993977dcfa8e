"""A native library for processors, by Apache TVM.

Kernels of our own in TVM's TIR are compiled by LLVM and packaged by the Relax VM.
"""
