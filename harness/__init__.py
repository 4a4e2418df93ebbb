"""Measure and verify LayerNorm implementations. It imports ``implementations``, never back."""
