"""C source for microcontrollers: the network as C99, with its weights packed in flash."""
