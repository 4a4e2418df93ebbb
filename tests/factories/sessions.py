"""Sessions of five cases, of an implementation that counts its calls in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, cast
from unittest.mock import Mock

import pytest

from factories.fake_device import LocalFleet
from harness.cases import Grid, Sweep
from harness.records import Record
from harness.run import Fleet, Session, SessionOutcome, plan, run_session

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

def fails(*arguments):
    counted(*arguments)
    raise ValueError("no")

def waits(x, *rest):
    while len(x) == 3 and not (HERE / "go").exists():
        time.sleep(0.01)
    return counted(x, *rest)
"""
ROWS = [1, 2, 3, 4, 5]


def rows(records: tuple[Record, ...]) -> list[int]:
    return [record.case.rows for record in records]


@dataclass
class Sessions:
    """Runs of the same five cases to the same file."""

    subjects: Path

    @property
    def calls(self) -> list[int]:
        """Rows of x in each call of the implementation so far."""
        path = self.subjects.with_name("calls")
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def session(self, name: str = "counted", **changes: Any) -> Session:
        """Return a session of the five cases."""
        grid = Grid(
            implementations=(f"{self.subjects}:{name}",),
            shapes=tuple((rows, 8) for rows in ROWS),
            measure=("errors",),  # type: ignore[arg-type]
        )
        sweep = Sweep(grids=(grid,))
        usual = Session(
            planned=plan(sweep, cast("Fleet", LocalFleet())),
            sweep=sweep,
            out=self.subjects.with_name("mine.parquet"),
            command="layernorm-bench run",
            began=monotonic(),
        )
        return replace(usual, **changes)

    def run(
        self,
        on_record: Callable[[Record], None] = lambda _: None,
        fleet: LocalFleet | None = None,
        **changes: Any,
    ) -> SessionOutcome:
        return run_session(self.session(**changes), cast("Fleet", fleet or LocalFleet()), on_record)

    def stop_after(self, count: int, **changes: Any) -> None:
        """Run a session that is interrupted after ``count`` records."""
        on_record = Mock(side_effect=[*[None] * (count - 1), InterruptedError])
        with pytest.raises(InterruptedError):
            self.run(on_record, **changes)
