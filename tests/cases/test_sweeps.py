"""From a sweep file, a preset or axes of the command line to cases, and the mistakes they name."""

from __future__ import annotations

from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any

import pytest
from factories.golden import assert_golden

import implementations
from harness.cases import (
    AXES,
    NAMED,
    Grid,
    Planned,
    Sweep,
    expand,
    in_shard,
    load_preset,
    load_sweep,
    parse_shape,
    parse_shapes,
    preset_names,
)
from harness.records import Affine, Autograd, Case, Direction, Measurement, Mode, Refusal

NAMES = ("native", "one_pass", "two_pass")
TWO_DEVICES: dict[str, str | None] = {"cpu": None, "cuda": None}
ANYWHERE = dict.fromkeys(NAMES, frozenset({"cpu", "cuda"}))


def expanded(
    sweep: Sweep,
    devices: dict[str, str | None] | None = None,
    written_for: dict[str, frozenset[str]] = ANYWHERE,
) -> tuple[Planned, ...]:
    """Expand where three implementations and a CPU exist, and a GPU without driver."""
    devices = devices or {"cpu": None, "cuda": "torch sees no CUDA device"}
    return expand(sweep, implementations=written_for, names=NAMED, devices=devices)


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


# --- axes from the command line ------------------------------------------------------------------


def test_axes_replace_those_of_every_grid() -> None:
    grids = (Grid(dtypes=("float16",)), Grid(shapes=((1, 2),)))
    sweep = Sweep(description="mine", timeout_s=3, grids=grids)
    replaced = sweep.with_axes({"shapes": ((4, 5),), "seeds": (3,)})
    assert [(grid.shapes, grid.seeds) for grid in replaced.grids] == [(((4, 5),), (3,))] * 2
    assert [grid.dtypes for grid in replaced.grids] == [("float16",), ("float32",)]
    assert replaced.timeout_s == 3
    assert sweep.with_axes({}) == sweep


def test_a_mistake_is_named_by_its_option_or_by_file_and_key(tmp_path: Path) -> None:
    path = written(tmp_path, '[[grids]]\ndtypes = ["float16", "float32"]\n[[grids]]\neps = [0]\n')
    sweep = load_sweep(path).with_axes({"seeds": (3,)}, {"seeds": "--seed", "dtypes": "--dtype"})
    assert list(sweep.values_of("dtypes")) == ["float16", "float32"]
    with pytest.raises(Refusal) as refused:
        sweep.refuse([("dtypes", "bad"), ("seeds", "bad"), ("dtypes", "bad"), ("dtypes", "worse")])
    lines = [f"{path}: dtypes: bad", "--seed: bad", f"{path}: dtypes: worse"]
    assert str(refused.value).splitlines() == lines
    sweep.refuse([])


# --- from axes to cases --------------------------------------------------------------------------


def test_a_grid_is_the_product_of_its_axes_and_consecutive_cases_share_their_inputs() -> None:
    grid = Grid(
        implementations=("one_pass", "native"),
        shapes=((2, 3), (4, 5)),
        dtypes=("float32", "float16"),
        modes=(Mode.EAGER, Mode.COMPILED),
    )
    ids = [plan.case.id for plan in expanded(Sweep(grids=(grid,)))]
    assert len(ids) == len(set(ids)) == 2**4
    assert ids[:5] == [
        "one_pass/forward/2x3/float32/normal",
        "native/forward/2x3/float32/normal",
        "one_pass/forward/2x3/float32/normal/compiled",
        "native/forward/2x3/float32/normal/compiled",
        "one_pass/forward/2x3/float16/normal",
    ]
    assert ids[8] == "one_pass/forward/4x5/float32/normal"


def test_a_case_of_two_grids_is_planned_once_and_measured_for_both() -> None:
    errors, memory = Measurement.ERRORS, Measurement.MEMORY
    first = Grid(implementations=("native",), shapes=((2, 3),), measure=(errors,))
    other = Grid(implementations=("native",), shapes=((2, 3), (4, 5)), measure=(memory, errors))
    planned = expanded(Sweep(grids=(first, other)))
    assert [(plan.case.shape, plan.measurements) for plan in planned] == [
        ((2, 3), (errors, memory)),
        ((4, 5), (memory, errors)),
    ]


@pytest.mark.parametrize(
    ("names", "on_cpu", "on_gpu"),
    [
        (("all",), NAMES, (*NAMES, "fused")),  # fused is written for GPUs alone
        (("fused", "all", "fused"), ("fused", *NAMES), ("fused", *NAMES)),
    ],
)
def test_all_stands_for_what_is_written_for_the_device_and_names_count_once(
    names: tuple[str, ...], on_cpu: tuple[str, ...], on_gpu: tuple[str, ...]
) -> None:
    grid = Grid(implementations=names, shapes=((2, 3),) * 2, devices=("cpu", "cuda"))
    written_for = ANYWHERE | {"fused": frozenset({"cuda"})}
    planned = expanded(Sweep(grids=(grid,)), TWO_DEVICES, written_for)
    for device, expected in (("cpu", on_cpu), ("cuda", on_gpu)):
        found = [plan.case.implementation for plan in planned if plan.case.device == device]
        assert found == [*expected]


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
    (planned,) = expanded(Sweep(grids=(Grid(**axes),)), TWO_DEVICES)
    assert planned.case == case
    # a field with its default value would not show that its axis is lost
    usual = Case(implementation="", shape=())
    assert all(getattr(case, field.name) != getattr(usual, field.name) for field in fields(Case))


# --- what a sweep file may hold, and how its mistakes are reported -------------------------------

# a value of another type is refused, not coerced, and so is one out of range
BAD_FILE = """
descripton = "many mistakes"
implementation = ["native"]
min_epochs = "7"
timeout_s = nan

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
threads = ["7", true, 2.0, 2147483648]
seeds = []
implementation = ["native"]
colour = ["red"]
shapes = [[4, -3], [4.0, 5], [], "1000000000x1000000000"]
"""


def test_every_mistake_of_a_file_is_reported_at_once(folder: Path) -> None:
    written(folder, BAD_FILE)
    with pytest.raises(Refusal) as refused:
        load_sweep(Path("mine.toml"))
    assert_golden(str(refused.value), __file__, "mistakes.txt")


# --- shapes as users type them -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shapes"),
    [("768", ((768,),)), ("0x5,5x0", ((0, 5), (5, 0))), ("064x1, 2x3x5", ((64, 1), (2, 3, 5)))],
)
def test_a_shape_is_its_sizes_joined_by_x(text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert parse_shapes(text) == shapes


@pytest.mark.parametrize(
    "text",
    ["4xx", "(4, 8)", "4X8", "-1x3", "1e9x1e9", "", "x", "4x", "x4", "4.0x4", "4x4x\n", "a", "4 4"],
)
def test_other_text_is_not_a_shape(text: str) -> None:
    with pytest.raises(ValueError, match="write sizes joined by x, such as 4096x1024"):
        parse_shape(text)


# --- presets and shards --------------------------------------------------------------------------

FOR_GPUS = {"models_gpu"}
EVERYTHING = {implementation.name: implementation.devices for implementation in implementations.ALL}


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_names_only_what_exists(name: str) -> None:
    sweep = load_preset(name)
    planned = expanded(sweep, TWO_DEVICES, EVERYTHING)
    assert sweep.description
    assert {plan.case.implementation for plan in planned} <= {*EVERYTHING}
    assert len({plan.case.id for plan in planned}) == len(planned) > 0


@pytest.mark.parametrize("name", sorted({*preset_names()} - FOR_GPUS))
def test_a_preset_runs_on_a_machine_without_a_gpu(name: str) -> None:
    planned = expanded(load_preset(name))
    assert {plan.case.device for plan in planned} == {"cpu"}
    # a dozen float64 copies of the largest fit in 1 GiB
    assert max(prod(plan.case.shape) for plan in planned) <= 1 << 23


def test_every_case_is_in_exactly_one_shard_which_never_changes() -> None:
    # machines with different releases may share a sweep
    cases = [Case(implementation="native", shape=(64, 768), seed=seed) for seed in range(40)]
    found = [[in_shard(case, index, 4) for index in (1, 2, 3, 4)] for case in cases]
    assert found[0] == [True, False, False, False]
    assert {sum(in_shards) for in_shards in found} == {1}
