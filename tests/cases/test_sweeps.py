"""From a sweep file, a preset or axes of the command line to cases, and the mistakes they name."""

from __future__ import annotations

from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any

import pytest
from factories.golden import assert_golden
from factories.sweeping import ANYWHERE, NAMES, TWO_DEVICES, expanded, mistakes, written
from hypothesis import given
from hypothesis import strategies as st

import implementations
from harness.cases import (
    AXES,
    DTYPES,
    NAMED,
    Grid,
    Sweep,
    expand,
    in_shard,
    load_preset,
    load_sweep,
    parse_shape,
    parse_shapes,
    preset_names,
)
from harness.measure.devices import DEVICES
from harness.records import Affine, Autograd, Case, Direction, Measurement, Mode, Refusal

# --- axes from the command line ------------------------------------------------------------------


def test_axes_replace_those_of_every_grid() -> None:
    sweep = Sweep(description="mine", timeout_s=3,
                  grids=(Grid(dtypes=("float16",)), Grid(shapes=((1, 2),))))  # fmt: skip
    replaced = sweep.with_axes({"shapes": ((4, 5),), "seeds": (3,)})
    assert [grid.shapes for grid in replaced.grids] == [((4, 5),)] * 2
    assert [grid.seeds for grid in replaced.grids] == [(3,)] * 2
    assert [grid.dtypes for grid in replaced.grids] == [("float16",), ("float32",)]
    assert replaced.timeout_s == 3
    assert sweep.with_axes({}) == sweep


def test_a_mistake_on_the_command_line_is_reported_once_for_all_grids() -> None:
    sweep = Sweep(grids=(Grid(), Grid(), Grid()))
    with pytest.raises(Refusal) as refused:
        sweep.with_axes({"dtypes": ("float23",), "modes": ("jit",)}, {"dtypes": "--dtype"})
    lines = str(refused.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["--dtype", "grids[0].modes[0]"]


def test_a_mistake_is_named_by_its_option_or_by_file_and_key(tmp_path: Path) -> None:
    path = written(tmp_path, '[[grids]]\ndtypes = ["float16", "float32"]\n[[grids]]\neps = [0]\n')
    sweep = load_sweep(path).with_axes({"seeds": (3,)}, {"seeds": "--seed", "dtypes": "--dtype"})
    assert list(sweep.values_of("dtypes")) == ["float16", "float32"]
    with pytest.raises(Refusal) as refused:
        sweep.refuse([("dtypes", "bad"), ("seeds", "bad"), ("dtypes", "bad"), ("dtypes", "worse")])
    assert str(refused.value).splitlines() == [
        f"{path}: dtypes: bad",
        "--seed: bad",
        f"{path}: dtypes: worse",
    ]
    sweep.refuse([])


# --- from axes to cases --------------------------------------------------------------------------


def test_a_grid_is_the_product_of_its_axes_and_consecutive_cases_share_their_inputs() -> None:
    grid = Grid(
        implementations=("one_pass", "native"),
        shapes=((2, 3), (4, 5)),
        dtypes=("float32", "float16"),
        distributions=("normal", "constant"),
        modes=(Mode.EAGER, Mode.COMPILED),
    )
    ids = [plan.case.id for plan in expanded(Sweep(grids=(grid,)))]
    assert len(ids) == len(set(ids)) == 2**5
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
    assert [(plan.case.shape, plan.measurements) for plan in expanded(both)] == [
        ((2, 3), (Measurement.ERRORS, Measurement.MEMORY)),
        ((4, 5), (Measurement.MEMORY, Measurement.ERRORS)),
    ]


def test_all_stands_for_every_implementation_and_a_value_given_twice_counts_once() -> None:
    grid = Grid(implementations=("native", "all", "native", "mine.py:norm"), shapes=((2, 3),) * 2)
    found = [plan.case.implementation for plan in expanded(Sweep(grids=(grid,)))]
    assert found == [*NAMES, "mine.py:norm"]


GPU_ALONE = {**ANYWHERE, "fused": frozenset({"cuda"})}


def test_all_leaves_out_implementations_for_other_devices() -> None:
    grid = Grid(shapes=((2, 3),), devices=("cpu", "cuda"))
    found = expanded(Sweep(grids=(grid,)), TWO_DEVICES, GPU_ALONE)
    assert [plan.case.implementation for plan in found if plan.case.device == "cpu"] == [*NAMES]
    on_gpu = [plan.case.implementation for plan in found if plan.case.device == "cuda"]
    assert on_gpu == [*NAMES, "fused"]


@pytest.mark.parametrize("names", [("fused",), ("all", "fused"), ("fused", "all")])
def test_an_implementation_that_is_named_runs_on_every_device(names: tuple[str, ...]) -> None:
    grid = Grid(implementations=names, shapes=((2, 3),))
    found = [plan.case.implementation for plan in expanded(Sweep(grids=(grid,)), None, GPU_ALONE)]
    assert found.count("fused") == 1


def test_every_axis_reaches_its_case() -> None:
    case = Case(
        implementation="native", mode=Mode.COMPILED, shape=(3, 4, 5), normalized_dims=2,
        dtype="float16", param_dtype="float64", device="cuda", distribution="constant",
        layout="transposed", direction=Direction.BACKWARD, autograd=Autograd.FROZEN_X,
        grad_output="ones", affine=Affine.BIAS, parameters="nan_bias", eps=1e-3,
        threads=2, seed=7,
    )  # fmt: skip
    axes: dict[str, Any] = {
        AXES[field.name].key: (getattr(case, field.name),) for field in fields(Case)
    }
    (planned,) = expanded(Sweep(grids=(Grid(**axes),)), devices={"cuda": None})
    assert planned.case == case
    # a field with its default value would not show that its axis is lost
    usual = Case(implementation="", shape=())
    assert all(getattr(case, field.name) != getattr(usual, field.name) for field in fields(Case))


def test_an_unknown_name_is_reported_once_for_all_grids() -> None:
    bad = Grid(distributions=("nromal",), layouts=("contigous",), shapes=((3,),))
    with pytest.raises(Refusal) as refused:
        expanded(Sweep(grids=(bad, bad.model_copy(update={"normalized_dims": (2,)}))))
    assert [line.partition(";")[0] for line in str(refused.value).splitlines()] == [
        "no distribution named 'nromal'",
        "no layout named 'contigous'",
        "shape 3 has fewer than 2 axes to normalise over",
    ]


# === What a sweep file may hold, and how its mistakes are reported


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


# === Shapes as users type them


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
    ["4xx", "(4, 8)", "4X8", "-1x3", "1e9x1e9", "", "x", "4x", "x4", "4.0x4", "4x4x\n", "a", "4 4"],
)
def test_other_text_is_not_a_shape(text: str) -> None:
    with pytest.raises(ValueError, match="write sizes joined by x, such as 4096x1024"):
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


# === Presets and shards


# --- presets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_names_only_what_exists(name: str) -> None:
    sweep = load_preset(name)
    planned = expand(
        sweep,
        implementations={
            implementation.name: implementation.devices for implementation in implementations.ALL
        },
        names=NAMED,
        devices=dict.fromkeys(DEVICES),
    )
    assert planned
    assert sweep.description
    named = {plan.case.implementation for plan in planned}
    assert named <= {implementation.name for implementation in implementations.ALL}
    assert len({plan.case.id for plan in planned}) == len(planned)


FOR_GPUS = {"models_gpu"}


@pytest.mark.parametrize("name", sorted({*preset_names()} - FOR_GPUS))
def test_a_preset_runs_on_a_machine_without_a_gpu(name: str) -> None:
    planned = expanded(load_preset(name))
    assert {plan.case.device for plan in planned} == {"cpu"}
    # a dozen float64 copies of the largest fit in 1 GiB
    assert max(prod(plan.case.shape) for plan in planned) <= 1 << 23


@pytest.mark.parametrize("name", FOR_GPUS)
def test_a_preset_for_gpus_says_so_where_there_is_none(name: str) -> None:
    with pytest.raises(Refusal, match="device 'cuda' cannot be used: torch sees no CUDA"):
        expanded(load_preset(name))
    planned = expanded(load_preset(name), TWO_DEVICES)
    assert {plan.case.device for plan in planned} == {"cuda"}
    # 64 MiB in bfloat16, beyond any L2; and with what a case holds within half of 80 GB
    sizes = {prod(plan.case.shape) for plan in planned}
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


def test_the_shard_of_a_case_never_changes() -> None:
    # machines with different releases may share a sweep
    case = Case(implementation="native", shape=(64, 768))
    assert [in_shard(case, index, 4) for index in (1, 2, 3, 4)] == [True, False, False, False]
