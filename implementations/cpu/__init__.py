"""LayerNorm in C++ for the CPU: source, build and calls."""
