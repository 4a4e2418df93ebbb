"""Replace the LayerNorms of a model by another implementation."""
