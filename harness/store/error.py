"""The exception for a results file that cannot be read or written."""

from __future__ import annotations

from harness.records.refusal import Refusal

__all__ = ["StoreError"]


class StoreError(Refusal):
    """A results file that cannot be read or written; the message names it and says why."""
