"""Latency, memory and environment of calls that are handed in; knows nothing of LayerNorm."""
