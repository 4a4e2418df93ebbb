"""The cases of a sweep, and where its values were written."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from factories.sweeping import ANYWHERE, NAMES, TWO_DEVICES, expanded, written

from harness.cases import (
    AXES,
    Grid,
    Sweep,
    load_sweep,
)
from harness.records import Affine, Autograd, Case, Direction, Measurement, Mode
from harness.records.refusal import Refusal

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
