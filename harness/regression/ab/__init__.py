"""Two revisions of the same implementations, imported side by side and timed in turn.

What imports the other revision is in :mod:`harness.regression.ab.side_by_side`, which needs torch.
"""

from harness.regression.ab.paired_run import (
    Bench,
    Pairing,
    ab,
    look_up_targets,
    pair_up,
    repository_of_sweep,
    run_base_case,
    time_against_base,
)
from harness.regression.ab.revision import (
    BASE,
    Availability,
    Checkout,
    LookupResult,
    RevisionError,
    checked_out,
    file_of,
    is_unchanged,
    repository_of,
)

__all__ = [
    "BASE",
    "Availability",
    "Bench",
    "Checkout",
    "LookupResult",
    "Pairing",
    "RevisionError",
    "ab",
    "checked_out",
    "file_of",
    "is_unchanged",
    "look_up_targets",
    "pair_up",
    "repository_of",
    "repository_of_sweep",
    "run_base_case",
    "time_against_base",
]
