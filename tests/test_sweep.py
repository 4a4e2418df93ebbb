"""Sweeps: what may be written in one, what is said of what may not, and which cases come of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import implementations
from harness.inputs import DISTRIBUTIONS, LAYOUTS, PARAMETERS, UPSTREAMS
from harness.measure.devices import DEVICES
from harness.records import Affine, Case, Direction, Measurement, Mode
from harness.sweep import (
    DTYPES,
    Grid,
    Planned,
    Sweep,
    SweepError,
    expand,
    in_shard,
    load_preset,
    load_sweep,
    parse_shape,
    preset_names,
)

NAMES = ("native", "one_pass", "two_pass")
ANYWHERE = dict.fromkeys(NAMES, frozenset({"cpu", "cuda"}))


def expanded(
    sweep: Sweep,
    devices: dict[str, str | None] | None = None,
    written_for: dict[str, frozenset[str]] = ANYWHERE,
) -> tuple[Planned, ...]:
    """Expand where three implementations and a CPU exist, and a GPU without driver."""
    return expand(
        sweep,
        implementations=written_for,
        distributions=DISTRIBUTIONS,
        layouts=LAYOUTS,
        upstreams=UPSTREAMS,
        parameters=PARAMETERS,
        devices=devices or {"cpu": None, "cuda": "torch sees no CUDA device"},
    )


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def mistakes(folder: Path, text: str) -> list[str]:
    """What is said of a sweep file, line by line, without its name."""
    path = written(folder, text)
    with pytest.raises(SweepError) as refused:
        load_sweep(path)
    lines = str(refused.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    return [line.removeprefix(f"{path}: ") for line in lines]


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
    ["4xx", "-1x3", "1e9x1e9", "", "x", "4x", "x4", "4 x 4", "4X4", "4*4", "4.0x4", "4x4\n", "a"],
)
def test_what_is_not_sizes_joined_by_x_is_no_shape(text: str) -> None:
    with pytest.raises(ValueError, match="write sizes joined by x, such as 4096x1024"):
        parse_shape(text)


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
    "min_epochs: Input should be a valid integer (found '7')",
    "grids[0].shapes[1]: '4xx' is not a shape: write sizes joined by x, such as 4096x1024",
    "grids[0].dtypes[0]: 'float23' is not one of float16, bfloat16, float32, float64; "
    "did you mean 'float32'?",
    "grids[1].shapes[0][1]: Input should be greater than or equal to 0 (found -3)",
    "grids[1].devices: must be a list (found 'cpu')",
    "grids[1].directions[0]: Input should be 'forward', 'backward' or 'forward+backward' "
    "(found 'sideways')",
    "grids[1].eps[0]: Input should be greater than or equal to 0 (found -1.0)",
    "grids[1].threads[0]: Input should be a valid integer (found '7')",
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


def test_an_empty_file_is_the_usual_sweep(tmp_path: Path) -> None:
    assert load_sweep(written(tmp_path, "")) == Sweep()


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
        ("shapes = [4]", "shapes[0]"),
        ('shapes = [[4, "5"]]', "shapes[0][1]"),
        ("shapes = [[4.0, 5]]", "shapes[0][0]"),
        ("shapes = [[true, 5]]", "shapes[0][0]"),
        ('seeds = ["0"]', "seeds[0]"),
        ('eps = ["1e-5"]', "eps[0]"),
        ("eps = [true]", "eps[0]"),
        ("implementations = [5]", "implementations[0]"),
        ("dtypes = [32]", "dtypes[0]"),
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


# --- axes from the command line ------------------------------------------------------------------


def test_axes_replace_those_of_every_grid() -> None:
    sweep = Sweep(grids=(Grid(dtypes=("float16",)), Grid(shapes=((1, 2),))))
    replaced = sweep.with_axes({"shapes": ((4, 5),), "seeds": (3,)})
    assert [each.shapes for each in replaced.grids] == [((4, 5),)] * 2
    assert [each.seeds for each in replaced.grids] == [(3,)] * 2
    assert [each.dtypes for each in replaced.grids] == [("float16",), ("float32",)]


def test_without_axes_a_sweep_stays_as_it_is() -> None:
    sweep = Sweep(description="mine", timeout_s=3, grids=(Grid(eps=(0.0,)),))
    assert sweep.with_axes({}) == sweep


def test_a_mistake_on_the_command_line_is_named_once_however_many_grids_there_are() -> None:
    sweep = Sweep(grids=(Grid(), Grid(), Grid()))
    with pytest.raises(SweepError) as refused:
        sweep.with_axes({"dtypes": ("float23",), "modes": ("jit",)})
    lines = str(refused.value).splitlines()
    assert lines == [
        "command line: modes[0]: Input should be 'eager' or 'compiled' (found 'jit')",
        "command line: dtypes[0]: 'float23' is not one of float16, bfloat16, float32, float64; "
        "did you mean 'float32'?",
    ]


# --- from axes to cases --------------------------------------------------------------------------


def test_a_grid_is_the_product_of_its_axes() -> None:
    grid = Grid(
        implementations=("native", "one_pass"),
        shapes=((2, 3), (4, 5)),
        dtypes=("float32", "float16"),
        directions=(Direction.FORWARD, Direction.BACKWARD),
        seeds=(0, 1, 2),
    )
    cases = {each.case for each in expanded(Sweep(grids=(grid,)))}
    assert len(cases) == 2 * 2 * 2 * 2 * 3
    points = {(c.implementation, c.shape, c.dtype, c.direction, c.seed) for c in cases}
    expected = product(grid.implementations, grid.shapes, grid.dtypes, grid.directions, grid.seeds)
    assert points == set(expected)


def test_cases_come_in_an_order_in_which_neighbours_share_their_inputs() -> None:
    grid = Grid(
        implementations=("one_pass", "native"),
        shapes=((2, 3), (4, 5)),
        dtypes=("float32", "float16"),
        distributions=("normal", "constant"),
        modes=(Mode.EAGER, Mode.COMPILED),
    )
    ids = [each.case.id for each in expanded(Sweep(grids=(grid,)))]
    assert ids[:6] == [
        "one_pass/forward/2x3/float32/normal",
        "native/forward/2x3/float32/normal",
        "one_pass/forward/2x3/float32/normal/compiled",
        "native/forward/2x3/float32/normal/compiled",
        "one_pass/forward/2x3/float32/constant",
        "native/forward/2x3/float32/constant",
    ]
    assert ids[8] == "one_pass/forward/2x3/float16/normal"
    assert ids[16] == "one_pass/forward/4x5/float32/normal"


def test_the_same_sweep_expands_to_the_same_cases_in_the_same_order() -> None:
    assert expanded(load_preset("quick")) == expanded(load_preset("quick"))


def test_a_case_of_two_grids_is_planned_once_and_measured_for_both() -> None:
    both = Sweep(
        grids=(
            Grid(implementations=("native",), shapes=((2, 3),), measure=(Measurement.ERRORS,)),
            Grid(
                implementations=("native",),
                shapes=((2, 3), (4, 5)),
                measure=(Measurement.MEMORY, Measurement.ERRORS),
            ),
        )
    )
    assert [(each.case.shape, each.measurements) for each in expanded(both)] == [
        ((2, 3), (Measurement.ERRORS, Measurement.MEMORY)),
        ((4, 5), (Measurement.MEMORY, Measurement.ERRORS)),
    ]


def test_a_value_given_twice_counts_once() -> None:
    grid = Grid(implementations=("native", "all", "native"), shapes=((2, 3), (2, 3)))
    found = [each.case.implementation for each in expanded(Sweep(grids=(grid,)))]
    assert found == ["native", "one_pass", "two_pass"]


def test_all_stands_for_every_implementation_there_is() -> None:
    grid = Grid(implementations=("all", "mine.py:norm"), shapes=((2, 3),))
    found = [each.case.implementation for each in expanded(Sweep(grids=(grid,)))]
    assert found == [*NAMES, "mine.py:norm"]


GPU_ALONE = {**ANYWHERE, "fused": frozenset({"cuda"})}
TWO_DEVICES: dict[str, str | None] = {"cpu": None, "cuda": None}


def test_all_leaves_out_what_is_not_written_for_the_device() -> None:
    grid = Grid(shapes=((2, 3),), devices=("cpu", "cuda"))
    found = expanded(Sweep(grids=(grid,)), TWO_DEVICES, GPU_ALONE)
    assert [each.case.implementation for each in found if each.case.device == "cpu"] == [*NAMES]
    on_gpu = [each.case.implementation for each in found if each.case.device == "cuda"]
    assert on_gpu == [*NAMES, "fused"]


@pytest.mark.parametrize("names", [("fused",), ("all", "fused"), ("fused", "all")])
def test_who_is_named_is_asked_wherever_it_is_written_for(names: tuple[str, ...]) -> None:
    grid = Grid(implementations=names, shapes=((2, 3),))
    found = [each.case.implementation for each in expanded(Sweep(grids=(grid,)), None, GPU_ALONE)]
    assert found.count("fused") == 1


def test_parameters_are_of_the_dtype_of_x_unless_one_is_named() -> None:
    grid = Grid(
        implementations=("native",),
        shapes=((2, 3),),
        dtypes=("bfloat16", "float64"),
        param_dtypes=("same", "float32"),
    )
    found = {(each.case.dtype, each.case.param_dtype) for each in expanded(Sweep(grids=(grid,)))}
    assert found == {
        ("bfloat16", "bfloat16"),
        ("bfloat16", "float32"),
        ("float64", "float64"),
        ("float64", "float32"),
    }


def test_every_axis_reaches_its_case() -> None:
    grid = Grid(
        implementations=("native",),
        modes=(Mode.COMPILED,),
        shapes=((3, 4, 5),),
        normalized_dims=(2,),
        dtypes=("float16",),
        param_dtypes=("float64",),
        distributions=("constant",),
        layouts=("transposed",),
        directions=(Direction.BACKWARD,),
        upstreams=("ones",),
        affines=(Affine.BIAS,),
        parameters=("nan_bias",),
        eps=(1e-3,),
        threads=(2,),
        seeds=(7,),
        devices=("cuda",),
    )
    (planned,) = expanded(Sweep(grids=(grid,)), devices={"cuda": None})
    assert planned.case == Case(
        implementation="native",
        mode=Mode.COMPILED,
        shape=(3, 4, 5),
        normalized_dims=2,
        dtype="float16",
        param_dtype="float64",
        device="cuda",
        distribution="constant",
        layout="transposed",
        direction=Direction.BACKWARD,
        upstream="ones",
        affine=Affine.BIAS,
        parameters="nan_bias",
        eps=1e-3,
        threads=2,
        seed=7,
    )
    # an axis that is forgotten here would leave a field as it usually is
    usual = Case(implementation="", shape=())
    assert all(
        getattr(planned.case, each.name) != getattr(usual, each.name) for each in fields(Case)
    )


@pytest.mark.parametrize(
    ("axes", "line"),
    [
        ({"distributions": ("nromal",)}, "no distribution named 'nromal'; did you mean 'normal'?"),
        ({"upstreams": ("oens",)}, "no upstream named 'oens'; did you mean 'ones'?"),
        ({"layouts": ("contigous",)}, "no layout named 'contigous'; did you mean 'contiguous'?"),
        ({"devices": ("cdua",)}, "no device named 'cdua'; did you mean 'cuda'?"),
        ({"devices": ("quantum",)}, "no device named 'quantum'; known: cpu, cuda"),
        ({"devices": ("cuda",)}, "device 'cuda' cannot be used: torch sees no CUDA device"),
        ({"shapes": ((5,),), "normalized_dims": (2,)}, "shape 5 has fewer than 2 axes"),
        ({"shapes": ((2, 3),), "normalized_dims": (3,)}, "shape 2x3 has fewer than 3 axes"),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_one_that_does(
    axes: dict[str, Any], line: str
) -> None:
    with pytest.raises(SweepError) as refused:
        expanded(Sweep(grids=(Grid(**axes),)))
    (found,) = str(refused.value).splitlines()
    assert found.startswith(line)


def test_what_does_not_exist_is_named_once_over_all_grids() -> None:
    bad = Grid(distributions=("nromal",), layouts=("contigous",), shapes=((3,),))
    with pytest.raises(SweepError) as refused:
        expanded(Sweep(grids=(bad, bad.model_copy(update={"normalized_dims": (2,)}))))
    assert [line.partition(";")[0] for line in str(refused.value).splitlines()] == [
        "no distribution named 'nromal'",
        "no layout named 'contigous'",
        "shape 3 has fewer than 2 axes to normalise over",
    ]


def test_an_empty_tensor_is_a_case_like_any_other() -> None:
    grid = Grid(implementations=("native",), shapes=((0, 5),))
    assert [each.case.shape for each in expanded(Sweep(grids=(grid,)))] == [(0, 5)]


# --- presets -------------------------------------------------------------------------------------


def test_the_presets_are_those_that_the_help_names() -> None:
    assert preset_names() == ("ci", "conditioning", "full", "models", "models_gpu", "quick")


def test_an_unknown_preset_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SweepError) as refused:
        load_preset("quik")
    assert str(refused.value) == (
        "no preset named 'quik'; presets: ci, conditioning, full, models, models_gpu, quick; "
        "did you mean 'quick'?"
    )


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_names_only_what_exists(name: str) -> None:
    sweep = load_preset(name)
    planned = expand(
        sweep,
        implementations={each.name: each.devices for each in implementations.ALL},
        distributions=DISTRIBUTIONS,
        layouts=LAYOUTS,
        upstreams=UPSTREAMS,
        parameters=PARAMETERS,
        devices=dict.fromkeys(DEVICES),
    )
    assert planned
    assert sweep.description
    named = {each.case.implementation for each in planned}
    assert named <= {each.name for each in implementations.ALL}
    assert len({each.case.id for each in planned}) == len(planned)


FOR_GPUS = {"models_gpu"}


@pytest.mark.parametrize("name", sorted({*preset_names()} - FOR_GPUS))
def test_a_preset_runs_on_a_machine_without_a_gpu(name: str) -> None:
    assert {each.case.device for each in expanded(load_preset(name))} == {"cpu"}


@pytest.mark.parametrize("name", FOR_GPUS)
def test_a_preset_for_gpus_says_so_where_there_is_none(name: str) -> None:
    with pytest.raises(SweepError, match="device 'cuda' cannot be used: torch sees no CUDA"):
        expanded(load_preset(name))
    planned = expanded(load_preset(name), TWO_DEVICES)
    assert {each.case.device for each in planned} == {"cuda"}
    # 64 MiB in bfloat16, beyond any L2; and with what a case holds within half of 80 GB
    sizes = {prod(each.case.shape) for each in planned}
    assert 1 << 25 <= min(sizes) <= max(sizes) <= 1 << 27


# --- shards --------------------------------------------------------------------------------------

cases = st.builds(
    Case,
    implementation=st.sampled_from(NAMES),
    shape=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 9),
)


@given(cases, st.integers(1, 20))
def test_every_case_is_in_exactly_one_shard(case: Case, count: int) -> None:
    assert sum(in_shard(case, index, count) for index in range(1, count + 1)) == 1


@given(cases)
def test_the_only_shard_holds_every_case(case: Case) -> None:
    assert in_shard(case, 1, 1)


def test_the_shard_of_a_case_stays_what_it_was() -> None:
    # machines with different releases share a sweep without a gap
    case = Case(implementation="native", shape=(64, 768))
    assert [in_shard(case, index, 4) for index in (1, 2, 3, 4)] == [True, False, False, False]


def test_shards_are_of_similar_size() -> None:
    planned = expanded(load_preset("conditioning"))
    sizes = Counter(
        index for each in planned for index in (1, 2, 3, 4) if in_shard(each.case, index, 4)
    )
    assert min(sizes.values()) > len(planned) / 8


def test_shapes_of_presets_fit_in_memory() -> None:
    names = {*preset_names()} - FOR_GPUS
    planned = [each for name in names for each in expanded(load_preset(name))]
    # a dozen float64 copies of the largest within 1 GiB
    assert max(prod(each.case.shape) for each in planned) <= 1 << 23
