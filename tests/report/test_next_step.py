"""The next step after a run is a command that the program accepts."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from factories.figures_factory import make_errors, make_latency

from harness.cases import AXES, Grid
from harness.cli import main
from harness.cli.options import SweepChoice, given_axes
from harness.cli.run import run
from harness.cli.verify import explain, verify
from harness.records import (
    Affine,
    Case,
    Direction,
    MeasurementWarning,
    Mode,
    Record,
    Status,
    WarningKind,
)
from harness.report.run import look_closer, next_step

CASE = Case(implementation="one_pass", shape=(64, 768))


def wrong(status: Status = Status.WRONG, *, off: str = "y", **fields: Any) -> Record:
    """Return a record in which one output is far off."""
    case = replace(CASE, **fields)
    errors = make_errors(case)
    outputs = tuple(
        replace(output, bound_ratio=9.0 if output.output == off else 0.5, vacuous_elements=0)
        for output in errors.outputs
    )
    return Record(
        case=case, environment="here", status=status, reason="off",
        errors=replace(errors, outputs=outputs),
    )  # fmt: skip


def words(record: Record) -> list[str]:
    step = look_closer(record)
    assert step is not None
    name, *arguments = shlex.split(step.command)
    assert name == "layernorm-bench"
    return arguments


def parsed(command: click.Command, arguments: list[str]) -> dict[str, Any]:
    """Return the parameters that click parses from a command line."""
    assert main.commands[arguments[0]] is command
    parent = click.Context(main, **main.context_settings)
    return command.make_context(arguments[0], arguments[1:], parent).params


def grid_of(parameters: dict[str, Any]) -> Grid:
    """Return the grid that options choose."""
    axes = {axis: values for axis, values in parameters.items() if axis in Grid.model_fields}
    (grid,) = SweepChoice(given_axes(axes)).load().grids
    return grid


@pytest.mark.parametrize("status", [Status.WRONG, Status.OUT_OF_GUARANTEE])
def test_a_wrong_y_is_explained(status: Status) -> None:
    assert words(wrong(status)) == [
        "explain", "one_pass", "--shape", "64x768", "--dtype", "float32",
        "--distribution", "normal",
    ]  # fmt: skip
    assert words(wrong(mode=Mode.COMPILED))[0] == "run"  # nothing else compiles


def test_every_value_of_a_case_reaches_the_explanation() -> None:
    record = wrong(
        shape=(3, 4, 5),
        normalized_dims=2,
        dtype="bfloat16",
        param_dtype="float32",
        distribution="offset_1e3",
        layout="transposed",
        affine=Affine.BIAS,
        eps=1e-12,
        seed=7,
    )
    found = parsed(explain, words(record))
    assert found["target"] == "one_pass"
    grid = grid_of({**found, "shapes": ((found["shape"],),)})
    for axis in AXES.values():
        if axis.key in found:
            assert getattr(grid, axis.key) == (axis.get(record.case),)


@pytest.mark.parametrize(
    ("record", "direction"),
    [
        (wrong(direction=Direction.BACKWARD, off="dx"), "backward"),
        (wrong(direction=Direction.FORWARD_BACKWARD, off="dweight"), "backward"),
        (wrong(parameters="nan_bias"), "forward"),  # explain takes other parameters
        (wrong(threads=2), "forward"),
        (replace(wrong(), errors=None), "forward"),  # such as a y of another shape
        (
            replace(
                wrong(), warnings=(MeasurementWarning(kind=WarningKind.CACHED_RESULT, advice=""),)
            ),
            "forward",
        ),
    ],
)
def test_a_wrong_case_that_cannot_be_explained_is_verified(record: Record, direction: str) -> None:
    found = parsed(verify, words(record))
    assert found["targets"] == ("one_pass",)
    assert (found["dtypes"], found["directions"]) == (("float32",), (direction,))
    assert found["device"] == "cpu"


@pytest.mark.parametrize(
    "status", [Status.CRASHED, Status.TIMEOUT, Status.ERROR, Status.OUT_OF_MEMORY]
)
def test_a_case_that_failed_is_run_again_by_itself(status: Status) -> None:
    record = wrong(
        status,
        implementation="my folder/mine.py:norm",
        mode=Mode.COMPILED,
        shape=(3, 4, 5),
        normalized_dims=2,
        dtype="float16",
        param_dtype="float64",
        distribution="constant",
        layout="transposed",
        direction=Direction.BACKWARD,
        grad_output="ones",
        affine=Affine.WEIGHT,
        parameters="nan_bias",
        eps=1e-3,
        threads=2,
        seed=7,
    )
    found = parsed(run, words(record))
    grid = grid_of(found)
    assert grid.implementations == ("my folder/mine.py:norm",)
    expected = {
        "modes": record.case.mode, "shapes": record.case.shape, "normalized_dims": 2,
        "dtypes": "float16", "param_dtypes": "float64", "distributions": "constant",
        "layouts": "transposed", "directions": record.case.direction, "grad_outputs": "ones",
        "affines": record.case.affine, "parameters": "nan_bias", "eps": 1e-3, "threads": 2,
        "seeds": 7,
    }  # fmt: skip
    assert {axis: getattr(grid, axis) for axis in expected} == {
        axis: (value,) for axis, value in expected.items()
    }


# --- after a whole run ---------------------------------------------------------------------------


def timed(name: str) -> Record:
    case = replace(CASE, implementation=name)
    return Record(
        case=case, environment="here", status=Status.OK, errors=make_errors(case),
        latency=make_latency(case),
    )  # fmt: skip


def test_the_next_step_is_a_look_at_the_first_problem_that_has_one() -> None:
    crashed = wrong(Status.CRASHED, implementation="mine.py:f")
    problems = [wrong(Status.UNSUPPORTED), crashed]
    records = [*problems, timed("native"), timed("one_pass")]
    step = next_step(records, problems, Path("mine.parquet"), has_page=False)
    assert step == look_closer(crashed)
    assert step is not None
    assert crashed.case.id in step.purpose


@pytest.mark.parametrize(
    ("names", "has_page", "command"),
    [
        (("native", "one_pass"), False, "choose"),
        (("native", "one_pass"), True, "choose"),
        (("native",), False, "report"),
        (("native",), True, None),
        ((), False, None),
    ],
)
def test_without_a_problem_the_next_step_uses_the_results(
    names: tuple[str, ...], has_page: bool, command: str | None
) -> None:
    results = Path("results/mine.parquet")
    step = next_step([timed(name) for name in names], [], results, has_page=has_page)
    expected = None if command is None else f"layernorm-bench {command} {results}"
    assert (step.command if step else None) == expected
