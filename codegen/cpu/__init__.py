"""A native library for processors, by Apache TVM: docs/native.md.

Kernels of our own in TVM's TIR are compiled by LLVM and packaged by the Relax VM.
"""
