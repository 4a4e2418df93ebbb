"""What may be written in a sweep, and what is said of what may not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweeping import mistakes, written

from harness.sweep import (
    Sweep,
    SweepError,
    load_sweep,
    parse_shape,
    parse_shapes,
)

# --- shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("4096x1024", (4096, 1024)),
        ("7", (7,)),
        ("0x5", (0, 5)),
        ("5x0", (5, 0)),
        ("2x3x5x7", (2, 3, 5, 7)),
        ("064x1", (64, 1)),
    ],
)
def test_a_shape_is_its_sizes_joined_by_x(text: str, shape: tuple[int, ...]) -> None:
    assert parse_shape(text) == shape


@pytest.mark.parametrize(
    "text",
    ["4xx", "-1x3", "1e9x1e9", "", "x", "4x", "x4", "4.0x4", "4x4x\n", "a", "4 4"],
)
def test_what_is_not_sizes_joined_by_x_is_no_shape(text: str) -> None:
    with pytest.raises(ValueError, match="write sizes joined by x, such as 4096x1024"):
        parse_shape(text)


@pytest.mark.parametrize(
    "text",
    ["4 x 8", "4X8", "4*8", "4×8", "4,8", "4, 8", "(4, 8)", "(4, 8,)", "[4,8]", "4x8\n", " 4x8"],
)
def test_what_is_almost_a_shape_is_answered_with_the_shape(text: str) -> None:
    with pytest.raises(ValueError, match=r"write sizes joined by x, such as 4x8$"):
        parse_shape(text)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("64x768", ((64, 768),)),
        ("768", ((768,),)),
        ("64x768,8x1024", ((64, 768), (8, 1024))),
        ("64x768, 2x3x4", ((64, 768), (2, 3, 4))),
    ],
)
def test_shapes_are_joined_by_commas(text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert parse_shapes(text) == shapes


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("64,768", "write 64x768 for one shape of 2 axes, or --shape 64 --shape 768 for 2 shapes"),
        ("2, 3,4", "write 2x3x4 for one shape of 3 axes, or --shape 2 --shape 3 --shape 4 for 3"),
        ("64x768,8", "if that is meant, write --shape 64x768 --shape 8; otherwise"),
        ("(64, 768)", "write sizes joined by x, such as 64x768"),
        ("4x4,", "has an empty shape: remove the extra comma"),
        ("4x4,(2,3)", "'(2' is not a shape"),
    ],
)
def test_a_comma_between_sizes_is_not_taken_for_one_between_shapes(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=re.escape(advice)):
        parse_shapes(text)


@pytest.mark.parametrize("text", ["1000000000x1000000000", "1099511627777", "99999999999x99"])
def test_a_shape_that_no_device_holds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="more than any device holds"):
        parse_shape(text)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5).map(tuple))
def test_a_shape_that_is_written_is_read_back(shape: tuple[int, ...]) -> None:
    assert parse_shape("x".join(map(str, shape))) == shape


# --- sweep files ---------------------------------------------------------------------------------

BAD_FILE = """
descripton = "eleven mistakes"
min_epochs = "7"

[[grids]]
shapes = ["64x768", "4xx"]
dtypes = ["float23"]

[[grids]]
devices = "cpu"
directions = ["sideways"]
eps = [-1.0]
threads = ["7"]
seeds = []
implementation = ["native"]
shapes = [[4, -3]]
"""
BAD_FILE_LINES = [
    "min_epochs: must be a valid integer (found '7')",
    "grids[0].shapes[1]: '4xx' is not a shape: write sizes joined by x, such as 4096x1024",
    "grids[0].dtypes[0]: 'float23' is not one of float16, bfloat16, float32, float64; "
    "did you mean 'float32'?",
    "grids[1].shapes[0][1]: must be greater than or equal to 0 (found -3)",
    "grids[1].devices: must be a list (found 'cpu')",
    "grids[1].directions[0]: 'sideways' is not one of forward, backward, forward+backward",
    "grids[1].eps[0]: must be greater than or equal to 0 (found -1.0)",
    "grids[1].threads[0]: must be a valid integer (found '7')",
    "grids[1].seeds: needs at least one value (found [])",
    "grids[1].implementation: unknown key; did you mean 'implementations'?",
    "descripton: unknown key; did you mean 'description'?",
]


def test_every_mistake_of_a_file_is_reported_at_once(tmp_path: Path) -> None:
    assert mistakes(tmp_path, BAD_FILE) == BAD_FILE_LINES


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


def test_an_empty_grid_is_the_usual_sweep(tmp_path: Path) -> None:
    assert load_sweep(written(tmp_path, "[[grids]]")) == Sweep()


@pytest.mark.parametrize("text", ["", "timeout_s = 5.0"])
def test_a_file_without_a_grid_is_refused(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SweepError) as refused:
        load_sweep(path)
    assert str(refused.value) == (
        f"{path}: has no [[grids]] table, so there is nothing to run: add one; an empty [[grids]] "
        "runs the default axes"
    )


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("description = 5", "description"),
        ('min_epochs = "7"', "min_epochs"),
        ("min_epochs = 7.0", "min_epochs"),
        ("max_epochs = true", "max_epochs"),
        ('timeout_s = "120"', "timeout_s"),
        ("timeout_s = true", "timeout_s"),
        ('seconds_per_case = "2"', "seconds_per_case"),
        ("grids = 1", "grids"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused_not_coerced(
    tmp_path: Path, line: str, where: str
) -> None:
    (found,) = mistakes(tmp_path, line)
    assert found.startswith(f"{where}: ")


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ('threads = ["7"]', "threads[0]"),
        ("threads = [2.0]", "threads[0]"),
        ("threads = [true]", "threads[0]"),
        ("threads = 2", "threads"),
        ('devices = "cpu"', "devices"),
        ('shapes = "4x4"', "shapes"),
        ("shapes = [4]", "shapes"),
        ("shapes = [true]", "shapes[0]"),
        ('shapes = ["64,768"]', "shapes[0]"),
        ('shapes = [[4, "5"]]', "shapes[0][1]"),
        ("shapes = [[4.0, 5]]", "shapes[0][0]"),
        ("shapes = [[true, 5]]", "shapes[0][0]"),
        ('seeds = ["0"]', "seeds[0]"),
        ('eps = ["1e-5"]', "eps[0]"),
        ("eps = [true]", "eps[0]"),
        ("implementations = [5]", "implementations[0]"),
        ("dtypes = [32]", "dtypes[0]"),
        ("param_dtypes = [[]]", "param_dtypes[0]"),
        ('normalized_dims = ["1"]', "normalized_dims[0]"),
        ("modes = [0]", "modes[0]"),
        ('measure = ["speed"]', "measure[0]"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_not_coerced(
    tmp_path: Path, line: str, where: str
) -> None:
    (found,) = mistakes(tmp_path, f"[[grids]]\n{line}\n")
    assert found.startswith(f"grids[0].{where}: ")


def test_a_list_of_sizes_is_not_taken_for_a_list_of_shapes(tmp_path: Path) -> None:
    assert mistakes(tmp_path, "[[grids]]\nshapes = [64, 768]\n") == [
        'grids[0].shapes: [64, 768] is a list of sizes, not of shapes: write ["64x768"] for one '
        "shape, or [[64], [768]] for 2 shapes of one axis"
    ]
    (grid,) = load_sweep(written(tmp_path, '[[grids]]\nshapes = [[64], "768"]\n')).grids
    assert grid.shapes == ((64,), (768,))


@pytest.mark.parametrize(
    "line",
    [
        "timeout_s = 0",
        "timeout_s = -1",
        "timeout_s = nan",
        "timeout_s = inf",
        "seconds_per_case = 0.0",
        "seconds_per_case = nan",
        "min_epochs = 0",
        "max_epochs = -1",
        "grids = []",
    ],
)
def test_a_setting_out_of_its_range_is_refused(tmp_path: Path, line: str) -> None:
    (found,) = mistakes(tmp_path, line)
    assert found.startswith(f"{line.partition(' ')[0]}: ")


@pytest.mark.parametrize(
    "line",
    [
        "normalized_dims = [0]",
        "threads = [0]",
        f"threads = [{2**31}]",
        "eps = [nan]",
        "eps = [inf]",
        "shapes = [[]]",
        "shapes = [[1000000000, 1000000000]]",
        'shapes = ["1000000000x1000000000"]',
        'dtypes = ["same"]',
        f"seeds = [{2**63}]",
        "measure = []",
    ],
)
def test_a_value_out_of_its_range_is_refused(tmp_path: Path, line: str) -> None:
    (found,) = mistakes(tmp_path, f"[[grids]]\n{line}\n")
    assert found.startswith(f"grids[0].{line.partition(' ')[0]}")


@pytest.mark.parametrize(
    ("key", "meant"),
    [("shape", "shapes"), ("dtype", "dtypes"), ("distrbutions", "distributions")],
)
def test_a_misspelt_axis_is_answered_with_what_was_meant(
    tmp_path: Path, key: str, meant: str
) -> None:
    (found,) = mistakes(tmp_path, f'[[grids]]\n{key} = ["x"]\n')
    assert found == f"grids[0].{key}: unknown key; did you mean {meant!r}?"


def test_a_key_like_no_other_is_answered_without_a_guess(tmp_path: Path) -> None:
    assert mistakes(tmp_path, "colour = 1") == ["colour: unknown key"]


def test_what_is_not_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    (found,) = mistakes(tmp_path, "description = 'a'\n\nmin_epochs = = 3\n")
    assert found.startswith("not TOML: ")
    assert "line 3" in found


def test_a_sweep_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r"gone\.toml: cannot be read: No such file"):
        load_sweep(tmp_path / "gone.toml")


def test_a_folder_is_no_sweep_file(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="cannot be read: Is a directory"):
        load_sweep(tmp_path)


def test_bytes_that_are_no_text_are_no_sweep_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"description = '\xff\xfe'")
    with pytest.raises(SweepError, match="not UTF-8 text"):
        load_sweep(path)


def test_a_refused_sweep_ends_in_the_exit_code_for_wrong_use() -> None:
    assert SweepError.exit_code == 2
