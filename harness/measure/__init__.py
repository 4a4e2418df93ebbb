"""Latency, memory and environment of any function; nothing here is specific to LayerNorm."""
