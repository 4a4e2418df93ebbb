"""The result of a run, as it is printed at its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.records import Run
from harness.store import Results

__all__ = ["SessionOutcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOutcome:
    """The result of a session."""

    results: Results
    path: Path
    """The parquet file, or the journal if cases are left."""
    left: int
    """Cases that were not started before the time budget was spent."""
    run: Run
    earlier: int = 0
    """Cases that were measured before the run was continued."""

    @property
    def measured(self) -> int:
        return sum(each.status.is_measured for each in self.results.records)

    @property
    def failed(self) -> int:
        """Cases that should have run and did not."""
        return sum(each.status.is_failure for each in self.results.records)
