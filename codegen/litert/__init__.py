"""A TFLite model of int8, for LiteRT, microcontrollers and Arm's Ethos-U NPUs."""
