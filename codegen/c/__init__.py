"""C source for machines without an operating system: the network as C99, with its weights packed in flash."""
