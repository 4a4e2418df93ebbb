"""The registry of axes: to add a value or an axis is one place."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from harness.cases import AXES, Condition, Relation, array_axes, changed, python_line
from harness.records import Affine, Case, Direction

CASE = Case(implementation="native", shape=(2, 3, 4, 5), normalized_dims=2)


def test_every_field_of_a_case_is_an_axis_that_users_set() -> None:
    settable = [axis.name for axis in AXES.values() if axis.key]
    assert {*settable} == {field.name for field in fields(Case)}


# a new axis, registered before anything else is imported
SCRIPT = """
from dataclasses import replace
from harness.cases import axes
from harness.records import Case

axes.AXES["tail"] = axes.Axis(
    name="tail", kind=int, key="tails", default=(0,), values=(0, 3), help="rest of N",
    title="the rest of N", getter=lambda case: case.hidden % 32,
    setter=lambda case, tail: replace(case, shape=(*case.shape[:-1], 64 + tail)),
)
from pathlib import Path
from harness.cases import load_sweep, expand
from harness.verify import Scope
from harness.verify.cases import array_within

for plan in expand(load_sweep(Path("mine.toml")), implementations={}, devices={"cpu": None}):
    print(plan.case.id, axes.command_options(plan.case))
rows = array_within(Scope(), 2, forward_only=False)
print(*sorted({(row["tail"], row["threads"]) for row in rows}))
"""
SHOWN = [
    *("native/forward/8x64/float32", "native/forward/8x67/float32", "'--tail', '3'"),
    "(0, 1) (0, 2) (3, 1) (3, 2)",  # the covering array
]


def test_a_new_axis_is_one_place(tmp_path: Path) -> None:
    text = '[[grids]]\nimplementations = ["native"]\nshapes = ["8x64"]\ntails = [0, 3]\n'
    (tmp_path / "mine.toml").write_text(text)
    printed = subprocess.check_output([sys.executable, "-c", SCRIPT], cwd=tmp_path, text=True)
    assert [text for text in SHOWN if text not in printed] == []


# --- a case with another value --------------------------------------------------------------------


@pytest.mark.parametrize("name", array_axes())
def test_a_value_that_is_set_is_the_value_that_is_found(name: str) -> None:
    case = replace(CASE, dtype="bfloat16", param_dtype="bfloat16", direction=Direction.BACKWARD)
    found = {value: changed(case, name, value) for value in AXES[name].values}
    possible = {value: case for value, case in found.items() if case is not None}
    assert len(possible) > 1
    assert all(AXES[name].get(case) == value for value, case in possible.items())


def test_what_two_axes_exclude_is_no_case() -> None:
    assert changed(replace(CASE, parameters="transposed"), "normalized_axes", 1) is None
    plain = replace(CASE, affine=Affine.NONE)
    assert changed(plain, "parameters", "nan_bias") is None
    assert changed(replace(CASE, parameters="nan_bias"), "affine", Affine.NONE) == plain


# --- conditions -----------------------------------------------------------------------------------


def test_a_condition_holds_for_a_case_and_for_facts() -> None:
    expected = {
        **{(Relation.AT_LEAST, 20): True, (Relation.AT_LEAST, 21): False},
        **{(Relation.AT_MOST, 20): True, (Relation.AT_MOST, 19): False},
        **{(Relation.MULTIPLE, 4): True, (Relation.NOT_MULTIPLE, 4): False},
        **{(Relation.IS, 20): True, (Relation.IS_NOT, 20): False},
        **{(Relation.ONE_OF, (19, 20)): True, (Relation.ONE_OF, (19, 21)): False},
    }
    for facts in (CASE, {"hidden": 20}):
        assert expected == {
            (relation, value): Condition(axis="hidden", relation=relation, value=value).holds(facts)
            for relation, value in expected
        }


# --- how to repeat a case -------------------------------------------------------------------------


def test_the_line_of_python_names_only_unusual_settings() -> None:
    line = python_line(replace(CASE, affine=Affine.BIAS, eps=0.5))
    assert line == (
        "from layernorm_bench import verify_case; print(verify_case('native', "
        "shape=(2, 3, 4, 5), normalized_dims=2, affine='bias', eps=0.5))"
    )
