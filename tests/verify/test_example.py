"""The example of a mistake is as small as it gets, and its numbers and its command are right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from factories.small_catalogue import use_small_catalogue
from factories.verify_targets import mutant

from harness.records import Case, Status
from harness.run.attempt import attempt
from harness.verify import diagnosis, verification, verify
from harness.verify.example import Example, command_of, worst_of
from implementations import native

TARGET = """
import torch

def norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    y = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_catalogue(monkeypatch, largest=9000, one_in=4)
    monkeypatch.setattr(verification, "contract_findings", lambda *arguments: ())
    monkeypatch.setattr(diagnosis, "conditions_of_failures", lambda *arguments: ())


def example_of(name: str) -> Example:
    example = verify(mutant(name), quick=True, dtypes=("float32",)).example
    assert example is not None
    assert attempt(mutant(name), example.case).status is Status.WRONG
    return example


def test_a_mistake_in_y_is_shown_on_three_small_integers() -> None:
    example = example_of("unbiased_variance")
    assert (example.output, example.shape, example.x) == ("y", (1, 3), (1, 2, 4))
    assert (example.weight, example.bias, example.dy) == ((), (), None)
    assert example.computed == pytest.approx((-0.872870, -0.218217, 1.091087), abs=1e-5)
    assert example.exact == pytest.approx((-1.069042, -0.267260, 1.336302), abs=1e-5)
    assert example.allowed_ulp is not None
    assert example.error_ulp > 1e6 > 1e3 > example.allowed_ulp
    assert not example.conditions


@pytest.mark.parametrize(
    ("name", "output", "shape"),
    [
        ("dweight_averaged", "dweight", (2, 3)),
        ("second_block_of_a_row_ignored", "y", (1, 1025)),
        ("dx_without_mean_of_dy", "dx", (1, 3)),
    ],
)
def test_as_few_rows_and_elements_are_left_as_show_the_mistake(
    name: str, output: str, shape: tuple[int, ...]
) -> None:
    example = example_of(name)
    assert (example.output, example.shape) == (output, shape)
    assert (example.dy is None) is (output == "y")
    assert bool(example.x) is (len(example.computed) > 1)


def test_what_else_must_hold_is_stated() -> None:
    example = example_of("weight_ignored_without_bias")
    assert example.conditions == ("no bias is given",)
    assert example.bias is None


def test_the_worst_element_of_a_case_is_shown_whatever_its_size() -> None:
    case = Case(implementation="native", shape=(64, 300))
    example = worst_of(native, case, lambda case: case.id)
    assert example is not None
    assert example.allowed_ulp is not None
    assert 0 < example.error_ulp <= example.allowed_ulp
    assert (len(example.computed), example.x, example.commands) == (1, (), case.id)


def test_an_object_has_no_command_of_the_shell() -> None:
    command = command_of(Case(implementation="norm", shape=(1, 3)), "norm", "")
    assert command.startswith("from layernorm_bench import verify_case")


@pytest.mark.parametrize("threads", [1, 2])
def test_the_command_repeats_the_case(threads: int, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(TARGET)
    target = f"{file}:norm"
    case = Case(implementation=target, shape=(2, 3), threads=threads)
    command = command_of(case, repr(target), "")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path},
    )
    assert "wrong" in done.stdout
