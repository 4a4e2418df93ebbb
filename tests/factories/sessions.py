"""Sessions of five cases, of an implementation that counts its calls in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest

from factories.fake_device import LocalFleet
from harness.cases import Grid, Sweep
from harness.records import Record
from harness.run.fleet import Fleet
from harness.run.session import Session, SessionOutcome, plan, run_session

# counts its calls in a file; `waits` waits in its third case until a file named "go" exists
SUBJECTS = """
import time
from pathlib import Path
from torch.nn.functional import layer_norm

HERE = Path(__file__).parent

def counted(x, shape, weight=None, bias=None, eps=1e-5):
    with open(HERE / "calls", "a") as file:
        file.write(f"{len(x)}\\n")
    return layer_norm(x, tuple(shape), weight, bias, eps)

def waits(x, *rest):
    while len(x) == 3 and not (HERE / "go").exists():
        time.sleep(0.01)
    return counted(x, *rest)
"""
ROWS = (1, 2, 3, 4, 5)


Make = Callable[..., Session]


def maker(subjects: Path) -> Make:
    """Return a function that makes a session of five cases of the implementation."""

    def session(rows: tuple[int, ...] = ROWS, **changes: Any) -> Session:
        grid = Grid(
            implementations=(f"{subjects}:counted",),
            shapes=tuple((count, 8) for count in rows),
            measure=("errors",),  # type: ignore[arg-type]
        )
        sweep = Sweep(grids=(grid,))
        usual = Session(
            planned=plan(sweep, cast("Fleet", LocalFleet())),
            sweep=sweep,
            out=subjects.with_name("mine.parquet"),
            command="layernorm-bench run",
            began=monotonic(),
        )
        return replace(usual, **changes)

    return session


def calls(subjects: Path) -> list[int]:
    """Rows of x in each call of the implementation so far."""
    path = subjects.with_name("calls")
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def run(
    session: Session,
    on_record: Callable[[Record], None] = lambda _: None,
    fleet: LocalFleet | None = None,
) -> SessionOutcome:
    return run_session(session, cast("Fleet", fleet or LocalFleet()), on_record)


def rows(records: tuple[Record, ...]) -> list[int]:
    return [record.case.rows for record in records]


class StopError(Exception):
    """Ends a run from outside."""


def run_and_stop(session: Session, count: int) -> None:
    """Run a session that is interrupted after ``count`` records."""
    seen: list[Record] = []

    def on_record(record: Record) -> None:
        seen.append(record)
        if len(seen) == count:
            raise StopError

    with pytest.raises(StopError):
        run(session, on_record)
