"""LayerNorms that public bug reports describe, rebuilt and verified."""
