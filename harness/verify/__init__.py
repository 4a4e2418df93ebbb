"""How far a LayerNorm is from the exact result, and whether that is further than it may be."""
