"""LayerNorm in C: its source, how it is built, and calls of it."""
