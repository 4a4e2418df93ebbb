"""Is this a LayerNorm, how accurate a one, and if it is none, which mistake is it?"""

from __future__ import annotations

from harness.verify.verify import assert_layer_norm, verify, verify_case
from implementations import CallOptions

__all__ = ["CallOptions", "assert_layer_norm", "verify", "verify_case"]
