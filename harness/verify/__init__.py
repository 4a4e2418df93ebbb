"""Verify whether a target is a LayerNorm, how accurate it is, and which mistake it makes."""

from __future__ import annotations

from harness.verify.verification import assert_layer_norm, verify, verify_case

__all__ = ["assert_layer_norm", "verify", "verify_case"]
