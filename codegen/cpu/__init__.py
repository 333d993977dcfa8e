"""The native CPU library: kernels of our own in TVM's TIR, compiled by LLVM, packaged by the Relax VM."""
