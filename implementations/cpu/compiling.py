"""Load the operator while torch.compile traces. Imports torch._dynamo, so others import it late."""

import torch

from implementations.cpu.operators import load_operator


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def load_untraced() -> bool:
    """Load the operator, without a trace of how it is built."""
    load_operator()
    return True
