"""How far a LayerNorm is from the exact result, and whether that is further than it may be."""

from harness.verify.findings import Verdict
from harness.verify.verify import assert_layer_norm, verify, verify_case

__all__ = ["Verdict", "assert_layer_norm", "verify", "verify_case"]
