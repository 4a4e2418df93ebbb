"""The terminal: figures with the unit that suits them, a line for each case, a table at the end."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from math import inf, nan

import pytest
from results_factory import make_errors, make_latency, make_memory, make_record, make_results

from harness.cli import terminal as module
from harness.cli.terminal import (
    RunProgress,
    print_records,
)
from harness.records import Case, Record, Status
from harness.records.text import bytes_text, seconds_text

CASE = Case(implementation="one_pass", shape=(64, 768))
OK = Record(case=CASE, environment="here", status=Status.OK)
MEASURED = replace(
    OK, errors=make_errors(CASE), latency=make_latency(CASE), memory=make_memory(CASE)
)


class Terminal(StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


def printed(*records: Record, every: bool = False) -> str:
    stream = StringIO()
    print_records(records, stream, every=every)
    return stream.getvalue()


# --- units ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 ns"),
        (1e-9, "1 ns"),
        (123.4e-9, "123 ns"),
        (1e-6, "1 µs"),
        (4.567e-6, "4.57 µs"),
        (1e-3, "1 ms"),
        (0.25, "250 ms"),
        (1.0, "1 s"),
        (59.94, "59.9 s"),
        (99.9, "99.9 s"),
        (100.0, "1 min 40 s"),
        (3600.0, "60 min 0 s"),
        (inf, "inf s"),
        (nan, "nan s"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(value: float, text: str) -> None:
    assert seconds_text(value) == text


@pytest.mark.parametrize("value", [119.6, 179.9, 3599.7])
def test_a_minute_never_has_sixty_seconds(value: float) -> None:
    assert not seconds_text(value).endswith(" 60 s")


@pytest.mark.parametrize("value", [999.9e-9, 999.9e-6, 0.9999])
def test_a_duration_just_below_a_unit_is_not_in_powers_of_ten(value: float) -> None:
    assert "e+" not in seconds_text(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (576, "576 B"), (1536, "1.5 KiB"), (24 << 20, "24 MiB"), (3 << 40, "3 TiB")],
)
def test_memory_has_the_unit_that_suits_it(value: int, text: str) -> None:
    assert bytes_text(value) == text


# --- the table -----------------------------------------------------------------------------------


def test_few_cases_are_a_table_with_a_row_each() -> None:
    other = replace(MEASURED, case=replace(CASE, implementation="native"))
    lines = printed(MEASURED, other).splitlines()
    assert lines[0].split() == [
        "case", "status", "error", "of", "y", "worst", "error",
        "latency", "vs", "reference", "memory",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines[1:]] == [CASE.id, other.case.id]


def test_a_row_holds_the_figures() -> None:
    assert MEASURED.errors is not None
    assert MEASURED.latency is not None
    assert MEASURED.memory is not None
    row = printed(MEASURED).splitlines()[1]
    assert f"{MEASURED.errors.outputs[0].scaled_max_ulp:.3g} ulp" in row
    assert seconds_text(MEASURED.latency.per_call_s.value) in row
    assert bytes_text(MEASURED.memory.peak_extra_bytes) in row
    ratio = MEASURED.latency.reference_ratio
    assert ratio is not None
    assert f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" in row


def test_what_was_not_measured_is_a_dash_and_no_number() -> None:
    assert printed(OK).splitlines()[1].split() == [CASE.id, "ok", *"-----"]


def test_an_error_that_is_no_number_is_in_words() -> None:
    errors = make_errors(CASE)
    broken = replace(errors.outputs[0], scaled_max_ulp=float("inf"))
    record = replace(OK, errors=replace(errors, outputs=(broken,)))
    assert "not finite in y" in printed(record)


def test_the_table_of_a_pipe_is_not_cut() -> None:
    case = replace(CASE, implementation="some/rather/long/path/to/a/file.py:function_of_mine")
    assert case.id in printed(replace(MEASURED, case=case))


@pytest.mark.parametrize("columns", [40, 80, 100])
def test_a_narrow_terminal_cuts_no_id_and_says_what_it_leaves_out(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    other = replace(MEASURED, case=replace(CASE, implementation="native"))
    print_records([MEASURED, other], stream)
    lines = stream.getvalue().splitlines()
    assert {MEASURED.case.id, other.case.id} <= set(lines)
    heading = lines[0]
    assert "status" in heading
    assert max(map(len, lines[:5])) <= columns
    assert ("memory" in heading) == (columns > 40)
    assert ("columns left out: memory, worst error" in lines[-1]) == (columns == 40)


def test_brackets_in_a_name_are_printed_as_they_are() -> None:
    case = replace(CASE, implementation="a[bold]/mine.py:norm")
    assert case.id in printed(replace(OK, case=case))


def test_many_cases_are_a_table_of_implementations() -> None:
    other = replace(OK, case=replace(CASE, implementation="native"))
    lines = printed(*[OK] * 38, replace(OK, status=Status.WRONG), *[other] * 2).splitlines()
    assert [line.split() for line in lines] == [
        ["implementation", "cases", "ok", "wrong"],
        ["one_pass", "39", "38", "1"],
        ["native", "2", "2", "-"],
    ]
    assert len({line.rindex(last) + len(last) for line, last in zip(
        lines, ("wrong", "1", "-"), strict=True)}) == 1  # fmt: skip


def test_many_cases_have_a_row_each_if_every_one_is_wanted() -> None:
    assert len(printed(*make_results(41).records, every=True).splitlines()) == 42


def test_no_case_is_no_table() -> None:
    assert printed() == ""


def test_the_table_goes_to_what_standard_output_is_by_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_records([OK])
    assert CASE.id in capsys.readouterr().out


def test_progress_goes_to_what_standard_error_is_by_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    RunProgress(1).show(OK)
    assert CASE.id in capsys.readouterr().err


def test_forty_cases_are_a_table_still() -> None:
    assert len(printed(*[OK] * 40).splitlines()) == 41


# --- progress ------------------------------------------------------------------------------------


def test_in_a_pipe_every_case_has_its_line_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([100.0, 102.0, 104.0, 106.0])
    monkeypatch.setattr(module, "monotonic", lambda: next(times))
    stream = StringIO()
    with RunProgress(3, stream) as progress:
        for name in ("native", "one_pass", "two_pass"):
            progress.show(replace(OK, case=replace(CASE, implementation=name)))
    assert stream.getvalue().splitlines() == [
        "[1/3] ok               native/forward/64x768/float32/normal  (4 s left)",
        "[2/3] ok               one_pass/forward/64x768/float32/normal  (2 s left)",
        "[3/3] ok               two_pass/forward/64x768/float32/normal",
    ]


@pytest.mark.parametrize(
    ("left_s", "text"), [(0.3, "<1 s"), (1.6, "2 s"), (59.7, "60 s"), (200.2, "3 min 20 s")]
)
def test_the_time_left_is_in_whole_seconds(
    left_s: float, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, left_s])
    monkeypatch.setattr(module, "monotonic", lambda: next(times))
    stream = StringIO()
    RunProgress(2, stream).show(OK)
    assert stream.getvalue().endswith(f"  ({text} left)\n")


@pytest.mark.parametrize("stream", [StringIO(), Terminal()])
def test_quiet_progress_is_none(stream: StringIO) -> None:
    with RunProgress(2, stream, quiet=True) as progress:
        progress.expect(1)
        progress.show(MEASURED)
    assert stream.getvalue() == ""


def test_progress_of_a_continued_run_counts_what_is_left() -> None:
    stream = StringIO()
    with RunProgress(9, stream) as progress:
        progress.expect(2)
        progress.show(OK)
    assert stream.getvalue().startswith("[1/2] ")


def test_the_line_of_a_measured_case_holds_its_worst_error_and_its_time() -> None:
    assert MEASURED.errors is not None
    assert MEASURED.latency is not None
    stream = StringIO()
    RunProgress(1, stream).show(MEASURED)
    line = stream.getvalue()
    assert f"worst error {MEASURED.errors.worst.scaled_max_ulp:.3g} ulp" in line
    assert f"latency {seconds_text(MEASURED.latency.per_call_s.value)}" in line
    assert MEASURED.latency.reference_ratio is not None
    assert f"{MEASURED.latency.reference_ratio.value:.3g} times the reference" in line


@pytest.mark.parametrize("status", Status)
def test_every_status_keeps_the_columns_in_line(status: Status) -> None:
    stream = StringIO()
    RunProgress(10, stream).show(replace(OK, status=status))
    assert stream.getvalue().index(CASE.id) == len("[ 1/10] ") + 17


def test_in_a_pipe_nothing_is_drawn() -> None:
    stream = StringIO()
    with RunProgress(1, stream) as progress:
        progress.show(make_record(CASE))
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_on_a_terminal_there_is_a_bar_and_no_line_for_each_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with RunProgress(2, stream) as progress:
        progress.show(OK)
        progress.show(OK)
    drawn = stream.getvalue()
    assert "2/2" in drawn
    assert CASE.id not in drawn


def test_a_bar_is_taken_down_when_the_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()

    def fail_halfway() -> None:
        with RunProgress(2, stream) as progress:
            progress.show(OK)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is shown again
