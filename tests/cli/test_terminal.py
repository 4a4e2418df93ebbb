"""The progress of a run."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from factories.commanding import Terminal
from factories.figures_factory import make_errors, make_latency, make_memory
from factories.golden import assert_golden

from harness.cli import terminal as module
from harness.cli.terminal import RunProgress
from harness.records import Case, Record, Status

CASE = Case(implementation="one_pass", shape=(64, 768))
OK = Record(case=CASE, environment="here", status=Status.OK)
MEASURED = replace(
    OK, errors=make_errors(CASE), latency=make_latency(CASE), memory=make_memory(CASE)
)
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def _xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


def named(name: str, record: Record = OK) -> Record:
    return replace(record, case=replace(record.case, implementation=name))


# --- progress ------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Fake the clock; return the list of times that it shows, which the test fills."""
    times: list[float] = []
    monkeypatch.setattr(module, "monotonic", lambda: times.pop(0))
    return times


def test_the_progress_in_a_pipe(clock: list[float]) -> None:
    clock += [100.0, 102.0, 104.0, 106.0]
    stream = StringIO()
    with RunProgress(3, stream) as progress:
        progress.show(named("native", MEASURED))
        progress.show(replace(OK, status=Status.OUT_OF_GUARANTEE))
        progress.show(named("two_pass"))
    assert_golden(stream.getvalue(), GOLDEN / "progress.txt")


@pytest.mark.parametrize(
    ("left_s", "text"), [(0.3, "<1 s"), (1.6, "2 s"), (59.7, "60 s"), (200.2, "3 min 20 s")]
)
def test_the_time_left_is_in_whole_seconds(left_s: float, text: str, clock: list[float]) -> None:
    clock += [0.0, left_s]
    stream = StringIO()
    RunProgress(2, stream).show(OK)
    assert stream.getvalue().endswith(f"  ({text} left)\n")


@pytest.mark.parametrize("stream", [StringIO(), Terminal()])
def test_quiet_progress_prints_nothing(stream: StringIO) -> None:
    with RunProgress(2, stream, quiet=True) as progress:
        progress.expect(1)
        progress.show(MEASURED)
    assert stream.getvalue() == ""


def test_a_terminal_has_a_bar_and_no_line_per_case() -> None:
    stream = Terminal()
    with RunProgress(2, stream) as progress:
        progress.show(OK)
        progress.show(OK)
    assert "2/2" in stream.getvalue()
    assert CASE.id not in stream.getvalue()


def test_the_cursor_is_shown_again_if_the_run_fails() -> None:
    stream = Terminal()
    with pytest.raises(ZeroDivisionError), RunProgress(2, stream):
        raise ZeroDivisionError
    assert "\x1b[?25h" in stream.getvalue()
