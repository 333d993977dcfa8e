"""A lowered network as calls of kernels, the same for every target: shapes, layouts, memory, comparison."""
