"""The file that a workload is written in, and the workloads that come with the package.

tests/cases/test_sweep_files.py tests the reader.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from factories.choice_records import choices_among, ran

from harness.cases import Planned, expand, load_preset
from harness.records import Direction
from harness.records.refusal import Refusal
from harness.selection.workload import (
    choose_for_workload,
    find_workload,
    workload_names,
)

GOOD = """
[[calls]]
shape = "64x768"
dtype = "float32"
direction = "forward"
count = 24
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "work.toml"
    path.write_text(GOOD, encoding="utf-8")
    return path


def test_a_workload_is_read(path: Path) -> None:
    (call,) = find_workload(str(path)).calls
    assert (call.shape, call.count, call.direction) == ((64, 768), 24, Direction.FORWARD)


@pytest.mark.parametrize(
    ("line", "instead", "place"),
    [
        ("count = 24", "count = -3", " calls[0].count: "),
        ('dtype = "float32"', "", " calls[0].dtype: missing"),
        ("count = 24", "cuont = 24", " calls[0].cuont: unknown key; did you mean 'count'?"),
    ],
)
def test_a_mistake_is_named_with_its_key(path: Path, line: str, instead: str, place: str) -> None:
    path.write_text(GOOD.replace(line, instead))
    with pytest.raises(Refusal) as refused:
        find_workload(str(path))
    assert str(refused.value).startswith(f"{path}:{place}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "description = 'none'", "calls = []"])
def test_a_file_without_calls_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(Refusal, match=r"calls: (missing|needs at least one value)"):
        find_workload(str(path))


@pytest.mark.parametrize("name", ["gone.toml", "work/gone"])
def test_a_name_that_looks_like_a_path_is_one(name: str) -> None:
    with pytest.raises(Refusal, match=f"{name}: cannot be read: No such file"):
        find_workload(name)


def test_a_file_takes_precedence_over_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpt2_xl").write_text(GOOD)
    assert find_workload("gpt2_xl").calls[0].count == 24


def models() -> tuple[Planned, ...]:
    """Cases of the preset for native alone."""
    sweep = load_preset("models").with_axes({"implementations": ("native",)})
    return expand(
        sweep,
        implementations={},
        names={"layout": ("contiguous", "transposed")},
        devices={"cpu": None},
    )


@pytest.mark.parametrize("name", workload_names())
def test_a_run_of_the_preset_models_holds_every_call(name: str) -> None:
    workload = find_workload(name)
    shapes = {call.shape for call in workload.calls}
    cases = [planned.case for planned in models() if planned.case.shape in shapes]
    records = [replace(ran("native", 1.0), case=case) for case in cases]
    (choice,) = choose_for_workload(workload, choices_among(*records))
    assert choice.missing == ()
    assert len(choice.calls) == len(workload.calls)


def test_a_transformer_has_two_calls_per_layer_and_one_more() -> None:
    counts = {name: [call.count for call in find_workload(name).calls] for name in workload_names()}
    assert counts["bert_base"] == [2 * 12 + 1]
    assert counts["gpt2_xl"] == [2 * 48 + 1]
    assert counts["gpt2_xl_generation"] == [97, 97 * 255]
