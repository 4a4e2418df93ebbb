"""The result of a run, with what is printed of its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from harness.records import Record, Run
from harness.store import Results

__all__ = ["MOST_ROWS", "SessionOutcome", "in_brief"]

MOST_ROWS = 40  # trade-off: about a screenful; of more cases only counts are printed


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOutcome:
    """The result of a session."""

    results: Results
    """With the records as :func:`in_brief` has them; ``path`` holds them in full."""
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


def in_brief(records: Iterable[Record]) -> tuple[Record, ...]:
    """Return at most MOST_ROWS records as they are, and more of them without their figures.

    A record without figures has its case, environment, status, reason and warnings. The first of
    each implementation and status keeps its figures, because the next step depends on them.
    """
    rest = iter(records)
    first = tuple(islice(rest, MOST_ROWS + 1))
    return first if len(first) <= MOST_ROWS else tuple(_thinned(chain(first, rest)))


def _thinned(records: Iterable[Record]) -> Iterator[Record]:
    seen: set[tuple[object, ...]] = set()
    for record in records:
        has_figures = record.errors is not None, record.latency is not None
        kind = record.case.implementation, record.status, *has_figures
        yield record if kind not in seen else _without_figures(record)
        seen.add(kind)


def _without_figures(record: Record) -> Record:
    return Record(
        case=record.case,
        environment=record.environment,
        status=record.status,
        reason=record.reason,
        warnings=record.warnings,
    )
