"""Exact results, error bounds, and the measured errors of an implementation."""
