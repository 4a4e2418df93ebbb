"""LayerNorm in C and C++ for the CPU: source, build and calls."""
