"""Other projects' acceptance tests, applied to the same LayerNorms."""
