"""One choice for a workload, and the file that it is written in."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from choice_records import OTHER_MACHINE, choices_among, failed, ran

from harness.records import Direction, Record, Status
from harness.selection.choose import NotInRunError
from harness.selection.whole import Whole, choose_for_whole
from harness.selection.words_of_whole import (
    gain_words,
    missing_lines,
    price_in_whole,
    whole_reason,
)
from harness.selection.workload import (
    Call,
    Workload,
    WorkloadError,
    find_workload,
    load_workload,
    workload_names,
)
from harness.sweep import Planned, expand, load_preset

SMALL, LARGE = (8, 768), (64, 768)
GOOD = """
[[calls]]
shape = "64x768"
dtype = "float32"
direction = "forward"
count = 24
"""


def call(shape: tuple[int, ...], count: int = 1, **axes: object) -> Call:
    plain = {"shape": shape, "dtype": "float32", "direction": "forward", "count": count}
    return Call.model_validate(plain | axes)


def wholes_of(calls: list[Call], *records: Record) -> tuple[Whole, ...]:
    return choose_for_whole(Workload(calls=tuple(calls)), choices_among(*records))


def whole_of(calls: list[Call], *records: Record) -> Whole:
    (whole,) = wholes_of(calls, *records)
    return whole


def both(name: str, small: float, large: float, **axes: object) -> list[Record]:
    """Records of two shapes, with the time of each over that of native."""
    return [ran(name, small, shape=SMALL, **axes), ran(name, large, shape=LARGE, **axes)]


NATIVE = both("native", 1.0, 1.0)


def best_of(whole: Whole) -> str | None:
    return None if whole.best is None else whole.best.label


# --- the choice -----------------------------------------------------------------------------------


def test_counts_decide_between_one_for_small_and_one_for_large() -> None:
    records = [*NATIVE, *both("large", 3.0, 0.5)]
    assert best_of(whole_of([call(SMALL, 1000), call(LARGE, 1)], *records)) == "native"
    assert best_of(whole_of([call(SMALL, 1), call(LARGE, 1000)], *records)) == "large"


def test_who_is_not_to_be_relied_on_for_one_call_does_not_serve_the_whole() -> None:
    bad = ran("quick", 0.5, shape=LARGE, status=Status.WRONG, reason="y is off")
    whole = whole_of([call(SMALL), call(LARGE)], *NATIVE, ran("quick", 0.5, shape=SMALL), bad)
    assert best_of(whole) == "native"
    (quick,) = (each for each in whole.candidates if each.label == "quick")
    assert price_in_whole(quick, whole) == (
        "is 2 times as fast and in 64x768 float32 forward is wrong on normal: y is off"
    )


def test_who_was_not_asked_for_one_call_does_not_serve_the_whole() -> None:
    whole = whole_of([call(SMALL), call(LARGE)], *NATIVE, ran("quick", 0.5, shape=SMALL))
    assert best_of(whole) == "native"


def test_none_serves_all_where_each_fails_somewhere_and_a_choice_for_each_does() -> None:
    quick = [ran("quick", 0.5, shape=SMALL), failed("quick", Status.CRASHED, shape=LARGE)]
    native = [failed("native", Status.CRASHED, shape=SMALL), ran("native", 1.0, shape=LARGE)]
    whole = whole_of([call(SMALL), call(LARGE)], *quick, *native)
    assert best_of(whole) is None
    assert whole.dispatch_s is not None
    assert whole_reason(whole) == "none of 2 serves every call; a choice for each shape does"


def test_totals_that_overlap_are_a_tie_broken_by_accuracy() -> None:
    records = [*both("quick", 0.99, 0.99, error_ulp=5.0), *NATIVE]
    whole = whole_of([call(SMALL), call(LARGE)], *records)
    assert best_of(whole) == "native"
    assert (
        whole_reason(whole) == "in all as fast as quick within the intervals; decided by accuracy"
    )


def test_who_was_timed_once_for_one_call_does_not_serve_the_whole() -> None:
    once = [ran("once", 0.5, shape=SMALL), ran("once", 585.0, interval=(0.0, inf), shape=LARGE)]
    whole = whole_of([call(SMALL, 1000), call(LARGE)], *NATIVE, *once)
    assert best_of(whole) == "native"
    (candidate,) = (each for each in whole.candidates if each.label == "once")
    assert "was timed too few times" in price_in_whole(candidate, whole)


def test_a_total_with_a_wide_interval_is_not_called_as_fast() -> None:
    wide = both("exact", 2.0, 2.0, interval=(0.82, 4.9), error_ulp=0.5)
    whole = whole_of([call(SMALL), call(LARGE)], *NATIVE, *wide)
    assert best_of(whole) == "native"
    assert whole_reason(whole) == (
        "the fastest, all calls together, by its estimate; exact may be as fast: its interval is "
        "0.82 to 4.9 times that of native"
    )


# --- what a choice for each shape adds ------------------------------------------------------------


def test_a_choice_for_each_shape_saves_what_differs_in_time_and_share() -> None:
    records = [*NATIVE, *both("large", 3.0, 0.5)]
    whole = whole_of([call(SMALL, 1000), call(LARGE, 1)], *records)
    large = next(each for each in whole.loads if each.call.shape == LARGE)
    native_s = next(each.cost for each in large.choice.candidates if each.label == "native")
    assert native_s is not None
    assert whole.gain is not None
    assert whole.gain.saved_s.value == pytest.approx(0.5 * native_s.value)
    assert whole.gain.is_certain
    assert gain_words(whole).startswith("saves ")


def test_a_saving_that_one_process_cannot_tell_is_not_certain() -> None:
    for processes, is_certain in ((1, False), (5, True)):
        axes = {"processes": processes, "spread": 0.001}
        records = [*both("native", 1.0, 1.0, **axes), *both("large", 1.5, 0.95, **axes)]
        whole = whole_of([call(SMALL, 1000), call(LARGE, 1000)], *records)
        assert whole.gain is not None
        assert whole.gain.is_certain is is_certain


def test_a_saving_within_the_intervals_cannot_be_told() -> None:
    records = [*both("quick", 0.9, 1.2), *both("other", 1.0, 1.0, spread=0.2)]
    whole = whole_of([call(SMALL, 1), call(LARGE, 1)], *records)
    assert whole.gain is not None
    assert not whole.gain.is_certain
    assert "cannot tell" in gain_words(whole)


def test_one_that_is_the_choice_of_each_shape_leaves_nothing_to_add() -> None:
    whole = whole_of([call(SMALL), call(LARGE)], *NATIVE, *both("slow", 2.0, 2.0))
    assert gain_words(whole) == "adds nothing: each is the one for all"


# --- what is covered ------------------------------------------------------------------------------


def test_calls_that_the_run_does_not_hold_are_named_with_the_share_covered() -> None:
    whole = whole_of([call(SMALL, 30), call((5, 7), 10)], *NATIVE)
    assert list(missing_lines(whole)) == [
        "not in the run: 5x7 float32 forward (10 times)",
        "covered: 30 of 40 calls (75 %)",
    ]


def test_a_call_for_a_device_that_was_not_measured_is_missing() -> None:
    whole = whole_of([call(SMALL, 30), call(SMALL, 10, device="cuda")], *NATIVE)
    assert whole.covered == (30, 40)


def test_a_workload_of_which_the_run_holds_nothing_is_refused() -> None:
    with pytest.raises(NotInRunError, match=r"none of the workload's calls.*5x7"):
        wholes_of([call((5, 7))], *NATIVE)


def test_each_device_and_machine_has_its_own_choice() -> None:
    calls = [call(SMALL)]
    cuda = [ran("native", 1.0, shape=SMALL, device="cuda")]
    assert [each.device for each in wholes_of(calls, *NATIVE, *cuda)] == ["cpu", "cuda"]
    there = ran("native", 1.0, shape=SMALL, environment=OTHER_MACHINE.fingerprint)
    assert len(wholes_of(calls, *NATIVE, there)) == 2


def test_a_call_that_is_two_questions_of_the_run_asks_which() -> None:
    twice = [*NATIVE, ran("native", 1.0, shape=SMALL, threads=4)]
    with pytest.raises(WorkloadError, match="say which: threads = 1 or 4"):
        wholes_of([call(SMALL)], *twice)
    assert whole_of([call(SMALL, threads=4)], *twice).covered == (1, 1)


# --- the file -------------------------------------------------------------------------------------


def load(tmp_path: Path, text: str) -> Workload:
    path = tmp_path / "work.toml"
    path.write_text(text, encoding="utf-8")
    return load_workload(path)


def refusal(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(WorkloadError) as caught:
        load(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path / 'work.toml'}:", "").splitlines()


def test_a_workload_is_read(tmp_path: Path) -> None:
    (found,) = load(tmp_path, GOOD).calls
    assert (found.shape, found.count, found.direction) == ((64, 768), 24, Direction.FORWARD)


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ('dtype = "float32"', 'dtype = "floot32"', "4: calls[0].dtype: 'floot32' is not one of"),
        ("count = 24", "count = -3", "6: calls[0].count: must be greater than"),
        ("count = 24", "count = 1.5", "6: calls[0].count: must be a valid integer"),
        ('shape = "64x768"', 'shape = "64xx768"', "3: calls[0].shape: '64xx768' is not a shape"),
        ('direction = "forward"', 'direction = "up"', "5: calls[0].direction: 'up' is not one of"),
        ('dtype = "float32"', "", "2: calls[0].dtype: missing"),
        ("count = 24", "cuont = 24", "6: calls[0].cuont: unknown key; did you mean 'count'?"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    tmp_path: Path, line: str, instead: str, said: str
) -> None:
    (found,) = refusal(tmp_path, GOOD.replace(line, instead))
    assert found.startswith(said)


def test_every_mistake_is_reported_at_once_each_with_the_line_of_its_own_table(
    tmp_path: Path,
) -> None:
    bad = GOOD.replace("24", "0")
    assert [each.partition(":")[0] for each in refusal(tmp_path, bad + bad)] == ["6", "12"]


def test_calls_written_inline_have_their_mistakes_named_without_a_line(tmp_path: Path) -> None:
    (found,) = refusal(
        tmp_path, 'calls = [{shape = "8x8", dtype = "float32", direction = "forward", count = 0}]'
    )
    assert found.startswith(" calls[0].count: ")


@pytest.mark.parametrize("text", ["", "description = 'none'", "calls = []"])
def test_a_file_without_calls_says_how_to_write_them(tmp_path: Path, text: str) -> None:
    (found,) = refusal(tmp_path, text)
    assert "[[calls]]" in found


@pytest.mark.parametrize("text", ["calls = 3", "calls = [3]"])
def test_calls_that_are_no_tables_are_refused(tmp_path: Path, text: str) -> None:
    (found,) = refusal(tmp_path, text)
    assert "must be" in found


def test_a_file_that_is_not_toml_is_refused_with_its_place(tmp_path: Path) -> None:
    (found,) = refusal(tmp_path, "[[calls]\n")
    assert "not TOML" in found
    assert "line 1" in found


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"none\.toml: cannot be read: No such file"):
        load_workload(tmp_path / "none.toml")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "work.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(WorkloadError, match="not UTF-8"):
        load_workload(tmp_path / "work.toml")


# --- those that come with the package -------------------------------------------------------------


def models() -> tuple[Planned, ...]:
    """Cases of the preset, as they are where native alone exists."""
    sweep = load_preset("models").with_axes({"implementations": ("native",)})
    return expand(
        sweep,
        implementations={},
        distributions=("normal",),
        layouts=("contiguous", "transposed"),
        grad_outputs=("shifted_normal",),
        parameters=("normal",),
        devices={"cpu": None},
    )


@pytest.mark.parametrize("name", workload_names())
def test_a_run_of_the_preset_models_answers_every_call(name: str) -> None:
    workload = find_workload(name)
    asked = {each.shape for each in workload.calls}
    cases = [each.case for each in models() if each.case.shape in asked]
    records = [replace(ran("native", 1.0), case=each) for each in cases]
    (whole,) = choose_for_whole(workload, choices_among(*records))
    assert whole.missing == ()
    assert len(whole.loads) == len(workload.calls)


def test_a_transformer_calls_it_twice_a_layer_and_once_more() -> None:
    counts = {name: [each.count for each in find_workload(name).calls] for name in workload_names()}
    assert counts["bert_base"] == [2 * 12 + 1]
    assert counts["gpt2_xl"] == [2 * 48 + 1]
    assert counts["gpt2_xl_generation"] == [97, 97 * 255]


@pytest.mark.parametrize("name", workload_names())
def test_a_workload_says_what_it_is(name: str) -> None:
    assert len(find_workload(name).description) > 20


def test_a_file_is_found_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "work.toml").write_text(GOOD)
    assert find_workload(str(tmp_path / "work.toml")) == load_workload(tmp_path / "work.toml")


def test_a_file_is_meant_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpt2_xl").write_text(GOOD)
    assert find_workload("gpt2_xl").calls[0].count == 24


def test_an_unknown_name_is_answered_with_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(WorkloadError) as caught:
        find_workload("gpt2xl")
    assert str(caught.value) == (
        f"no workload named 'gpt2xl'; workloads: {', '.join(workload_names())}; "
        "did you mean 'gpt2_xl'? (or give a file, such as mine.toml)"
    )


@pytest.mark.parametrize("path", ["gone.toml", "work/gone"])
def test_what_looks_like_a_path_is_one(path: str) -> None:
    with pytest.raises(WorkloadError, match=f"{path}: cannot be read: No such file"):
        find_workload(path)
