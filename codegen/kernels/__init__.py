"""Kernels in TVM's TIR, which targets compile: from nodes of the lowered graph to families that write them."""
