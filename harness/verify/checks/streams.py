"""Contract check of CUDA streams; not yet run on a GPU."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.inputs import make_inputs
from harness.numerics.completeness import copies_of
from harness.records import Case, Direction
from harness.verify.checks.outputs import compute, first_differing_output
from harness.verify.checks.settings import LONG_TAIL, SMALL, at
from implementations.contract import Implementation
from implementations.torch_private import spin

__all__ = ["works_on_the_current_stream"]

# about 10 ms; trade-off: far above the time to launch a call, little beside the catalogue
_SPINS = 20_000_000


@at(SMALL, LONG_TAIL)
def works_on_the_current_stream(implementation: Implementation, case: Case) -> str | None:
    """Work is queued on the current stream, behind what has been queued there before.

    The stream is kept busy, and only then gets its inputs. A kernel that is launched on another
    stream, such as the default one, does not wait, and reads what the inputs held before.
    """
    if case.device != "cuda":
        return None
    direction = Direction.FORWARD if implementation.forward_only else Direction.BACKWARD
    case = replace(case, direction=direction)
    inputs = make_inputs(case)
    expected = copies_of(compute(implementation, case, inputs))  # compiles it, if it must be
    held = make_inputs(replace(case, seed=case.seed + 1))
    stream = torch.cuda.Stream()  # one that does not wait for the default stream
    torch.cuda.synchronize()
    try:
        with torch.cuda.stream(stream):
            spin(_SPINS)
            for tensor, new in zip(held.tensors, inputs.tensors, strict=True):
                tensor.copy_(new)
            found = copies_of(compute(implementation, case, held))
    finally:  # nothing may be freed that another stream still reads
        torch.cuda.synchronize()
    if name := first_differing_output(implementation, case, inputs, expected, found):
        return f"{name} is computed before the work queued on the current stream is done"
    return None
