"""What a sweep file may hold, and how its mistakes are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories.golden import assert_golden
from factories.sweeping import mistakes, written

from harness.cases import load_sweep
from harness.records.refusal import Refusal

BAD_FILE = """
descripton = "twelve mistakes"
min_epochs = "7"

[[grids]]
shapes = [
  "64x768",
  "4xx",
]
dtypes = ["float23"]

[[grids]]
devices = "cpu"
directions = ["sideways"]
eps = [-1.0]
threads = ["7"]
seeds = []
implementation = ["native"]
colour = ["red"]
shapes = [[4, -3]]
"""


def test_every_mistake_of_a_file_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, BAD_FILE)
    with pytest.raises(Refusal) as refused:
        load_sweep(Path("mine.toml"))
    assert_golden(str(refused.value), Path(__file__).parent / "golden" / "mistakes.txt")


def test_a_file_without_mistakes_is_loaded(tmp_path: Path) -> None:
    sweep = load_sweep(
        written(
            tmp_path,
            """
            description = "mine"
            timeout_s = 5
            [[grids]]
            implementations = ["native"]
            shapes = ["0x5", [4, 3]]
            eps = [0, 1e-6]
            """,
        )
    )
    assert (sweep.description, sweep.timeout_s) == ("mine", 5.0)
    (grid,) = sweep.grids
    assert grid.shapes == ((0, 5), (4, 3))
    assert grid.eps == (0.0, 1e-6)
    assert grid.dtypes == ("float32",)


@pytest.mark.parametrize("text", ["", "timeout_s = 5.0"])
def test_a_file_without_a_grid_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Refusal, match=r"has no \[\[grids\]\] table"):
        load_sweep(written(tmp_path, text))


# a string or a float in place of an integer, a scalar in place of a list, and values out of range
BAD_SETTINGS = (
    "description = 5", 'min_epochs = "7"', "min_epochs = 7.0", "max_epochs = true",
    'timeout_s = "120"', "timeout_s = true", 'seconds_per_case = "2"', "grids = 1",
    "timeout_s = 0", "timeout_s = -1", "timeout_s = nan", "timeout_s = inf",
    "seconds_per_case = 0.0", "seconds_per_case = nan", "min_epochs = 0", "max_epochs = -1",
    "grids = []",
)  # fmt: skip


BAD_AXES = {
    "threads[0]": ('["7"]', "[2.0]", "[true]", "[0]", f"[{2**31}]"),
    "threads": ("2",),
    "devices": ('"cpu"',),
    "shapes": ('"4x4"',),
    "shapes[0]": ("[4]", "[true]", '["64,768"]', "[[]]", "[[1000000000, 1000000000]]",
                  '["1000000000x1000000000"]'),
    "shapes[0][1]": ('[[4, "5"]]', "[[4, -3]]"),
    "shapes[0][0]": ("[[4.0, 5]]", "[[true, 5]]"),
    "seeds[0]": ('["0"]', f"[{2**63}]"),
    "eps[0]": ('["1e-5"]', "[true]", "[nan]", "[inf]"),
    "implementations[0]": ("[5]",),
    "dtypes[0]": ("[32]", '["same"]'),
    "param_dtypes[0]": ("[[]]",),
    "normalized_dims[0]": ('["1"]', "[0]"),
    "modes[0]": ("[0]",),
    "measure[0]": ('["speed"]',),
    "measure": ("[]",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "place"),
    [
        *((line, line.partition(" ")[0]) for line in BAD_SETTINGS),
        *(
            (f"[[grids]]\n{key.partition('[')[0]} = {value}\n", f"grids[0].{key}")
            for key, values in BAD_AXES.items()
            for value in values
        ),
    ],
)
def test_a_bad_value_is_refused_not_coerced(tmp_path: Path, text: str, place: str) -> None:
    ((found, _),) = mistakes(tmp_path, text)
    assert found == place


def test_text_that_is_not_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    ((place, message),) = mistakes(tmp_path, "description = 'a'\n\nmin_epochs = = 3\n")
    assert place == "not TOML"
    assert "line 3" in message


@pytest.mark.parametrize(
    ("name", "why"),
    [("gone.toml", "No such file"), (".", "Is a directory"), ("bytes.toml", "not UTF-8 text")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"description = '\xff\xfe'")
    with pytest.raises(Refusal, match=f"cannot be read: {why}") as refused:
        load_sweep(tmp_path / name)
    assert str(refused.value).startswith(str(tmp_path / name))
    assert refused.value.exit_code == 2
