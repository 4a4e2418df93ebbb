"""Verify whether a target is a LayerNorm, how accurate it is, and which mistake it makes."""

from __future__ import annotations

from harness.verify.verification import verify, verify_case

__all__ = ["verify", "verify_case"]
