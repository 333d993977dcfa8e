"""Which operators each family takes: one function per operator, from a node of the lowered graph to kernels."""
