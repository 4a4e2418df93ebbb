"""A known mistake is named, no suggestion excludes another, and the example is small and right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from factories.other_device import OtherDevice
from factories.small_catalogue import use_small_catalogue
from factories.verify_targets import layer_norm, mutant
from torch import Tensor
from torch.nn import functional

from harness.mutants import Rows, layer_norm_of, named
from harness.records import Case, Direction, RemarkKind, Severity, Status
from harness.run import call as computed
from harness.run.attempt import attempt
from harness.run.integrity import process_state
from harness.verify import diagnosis, verification, verify
from harness.verify.diagnosis import mistakes_of
from harness.verify.example import command_of, worst_of
from implementations import Implementation, adopt, native, two_pass

STRIDES_IGNORED = named("strides_ignored").mistake
ONE_PASS = "computes the variance as E[x^2] - E[x]^2, which"
OF_EPS = {RemarkKind.DEFAULT_EPS, RemarkKind.SHOWN_EPS}
OFTEN = ("normal", "tiny_variance")
WIDER = (*OFTEN, "offset_1e2")


def cases(dtype: str, *distributions: str, shape: tuple[int, ...] = (17, 129)) -> list[Case]:
    return [
        Case(
            implementation="implementation",
            shape=shape,
            dtype=dtype,
            param_dtype=dtype,
            distribution=name,
            direction=Direction.BACKWARD,
        )
        for name in distributions or OFTEN
    ]


STRIDED = [replace(case, layout="transposed") for case in cases("float32")]


def mistakes(implementation: Implementation, tried: Sequence[Case]) -> list[str]:
    trials = [attempt(implementation, case) for case in tried]
    failed = [trial for trial in trials if trial.status is Status.WRONG]
    assert failed
    before = process_state()  # some mutants change the process
    found = [known.text for known in mistakes_of(implementation, failed)]
    assert process_state() == before
    return found


def inexact_if_strided(times: float) -> Implementation:
    def inexact(x: Tensor, *others: Any) -> Tensor:
        y = native(x, *others)
        return y if x.is_contiguous() else y * (1 + times)

    return adopt(inexact, "")


def last_axis_only(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.var(-1, keepdim=True) + eps).rsqrt() * weight + bias


ON_ONE_AXIS = cases("float32", shape=(7, 5, 33))
ON_TWO_AXES = [replace(case, normalized_dims=2) for case in ON_ONE_AXIS]
LARGE = cases("float64", "normal", shape=(1, (1 << 18) + 1))
SMALL = cases("float64", "normal", shape=(1, 1 << 12))


@pytest.mark.parametrize(
    ("target", "tried", "mistake"),
    [
        (mutant("unbiased_variance"), cases("float32", *WIDER), "N-1"),
        (mutant("eps_ignored"), cases("bfloat16", *WIDER), named("eps_ignored").mistake),
        (
            mutant("dx_without_projection"),
            cases("bfloat16", *WIDER),
            named("dx_without_projection").mistake,
        ),
        (
            mutant("mean_in_float16"),
            cases("float32", *WIDER),
            named("mean_in_float16").mistake,
        ),
        (
            adopt(lambda x, *others: native(x.clone().as_strided(x.shape, (129, 1)), *others), ""),
            STRIDED,
            STRIDES_IGNORED,
        ),
        (adopt(last_axis_only, ""), [*ON_TWO_AXES, *ON_ONE_AXIS], "N-1"),
        (mutant("unbiased_variance"), [*SMALL, *LARGE], "N-1"),
    ],
    ids=["variance", "eps", "dx", "float16", "strides", "several axes", "small besides large"],
)
def test_a_known_mistake_is_named(
    target: Implementation, tried: Sequence[Case], mistake: str
) -> None:
    assert any(mistake in text for text in mistakes(target, tried))


@pytest.mark.parametrize("name", ["unbiased_variance", "one_pass_clamped"])
def test_a_mistake_is_named_on_another_device_than_the_cpu(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "WRONG", (named("unbiased_variance"),))
    # tensors of the other device are of a subclass, which no output may be
    monkeypatch.setattr(computed, "checked", lambda name, output, like: output)
    tried = cases("float32", *WIDER, shape=(17, 33))
    with OtherDevice():
        found = mistakes(mutant(name), [replace(case, device="meta") for case in tried])
    mistake = {"unbiased_variance": "N-1", "one_pass_clamped": ONE_PASS}[name]
    assert any(mistake in text for text in found)


@pytest.mark.parametrize(
    "target",
    [mutant("eps_ignored"), inexact_if_strided(1e-5), inexact_if_strided(1.0)],
    ids=["contiguous too", "slightly", "far off"],
)
def test_an_error_that_is_not_that_of_a_misread_layout_is_none(target: Implementation) -> None:
    assert STRIDES_IGNORED not in mistakes(target, STRIDED)


@layer_norm_of
def pivoted(of: Rows) -> Tensor:
    """One pass over x - x[0]: slightly inaccurate if x[0] is far from the rest."""
    moved = of.x - of.x[:, :1].detach()
    mean = moved.mean(-1, keepdim=True)
    variance = (moved.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return of.affine((moved - mean) * torch.rsqrt(variance + of.eps))


def of_another_eps(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    return two_pass.function(x, shape, weight, bias, eps * 1.001)


def spiked(*arguments: Any) -> Tensor:
    y = two_pass.function(*arguments)
    return y + functional.one_hot(torch.tensor(3), y.shape[-1]).to(y) / 4


@pytest.mark.parametrize(
    ("target", "tried"),
    [
        (adopt(of_another_eps, ""), cases("float64")),
        (adopt(pivoted, ""), cases("float32", "outlier_first", shape=(5, 64))),
        (adopt(pivoted, ""), cases("float64", "outlier_first", shape=(5, 64))),
        (adopt(spiked, ""), cases("bfloat16", "normal", shape=(1, 4096))),
        (mutant("unbiased_variance"), LARGE),
    ],
    ids=[
        "another eps",
        "near the bound",
        "in float64",
        "one element",
        "too large for every mutant",
    ],
)
def test_an_error_that_no_mutant_makes_has_no_diagnosis(
    target: Implementation, tried: Sequence[Case]
) -> None:
    assert mistakes(target, tried) == []


def wrong_from_130(x: Tensor, *arguments: Any) -> Tensor:
    """Doubles dx in rows of 130 elements or more."""
    if x.shape[-1] >= 130 and x.requires_grad:
        x = 2 * x - x.detach()
    return layer_norm(x, *arguments)


def test_the_verdict_names_where_outputs_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_catalogue(monkeypatch, largest=1000)
    monkeypatch.setattr(verification, "contract_findings", lambda *arguments: ())
    verdict = verify(wrong_from_130, quick=True, dtypes=("float32",), normalized_dims=1)
    found = [cause.text for cause in verdict.of(Severity.CAUSE) if cause.kind == "trigger"]
    assert found == ["dx wrong where N >= 130"]


# --- suggestions and examples of a verdict -------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try few cases, and neither contract checks nor where the mistake shows."""
    use_small_catalogue(monkeypatch, largest=600, one_in=4)
    monkeypatch.setattr(verification, "contract_findings", lambda *arguments: ())
    monkeypatch.setattr(diagnosis, "conditions_of_failures", lambda *arguments: ())


@pytest.mark.parametrize(
    ("name", "is_of_eps"),
    [
        ("eps_ignored", True),
        ("eps_always_1e_6", True),
        ("unbiased_variance", False),
        ("root_mean_square", False),
        ("statistics_of_all_rows", False),
        ("newton_step_missing", False),
    ],
)
@pytest.mark.usefixtures("short")
def test_suggestions_agree_and_no_eps_is_stated_unless_the_variance_is_right(
    name: str, is_of_eps: bool
) -> None:
    verdict = verify(mutant(name), quick=True, dtypes=("float32",))
    causes = [cause for cause in verdict.of(Severity.CAUSE) if cause.kind == "mistake"]
    assert len(causes) <= 2
    for one, other in combinations(causes, 2):  # two explanations of one result exclude each other
        assert not {*one.dtypes} & {*other.dtypes} & {*one.evidence} & {*other.evidence}
    stated = [cause.text for cause in causes if "eps" in cause.text]
    stated += [fact.text for fact in verdict.remarks if fact.kind in OF_EPS]
    assert verdict.scope is not None
    has_eps = verdict.scope.default_eps not in {None, 1e-5} or verdict.scope.eps is not None
    assert (bool(stated) or has_eps) is is_of_eps


@pytest.mark.usefixtures("short")
def test_a_fixed_eps_is_not_stated_if_the_variance_is_wrong() -> None:
    def fixed(x: Tensor, normalized_shape: Any, weight: Tensor, bias: Tensor) -> Tensor:
        deviation = x - x.mean(-1, keepdim=True)
        variance = deviation.square().sum(-1, keepdim=True) / (x.shape[-1] - 0.5)
        return deviation * (variance + 1e-5).rsqrt() * weight + bias

    verdict = verify(fixed, quick=True, dtypes=("float32",))
    assert verdict.is_wrong
    assert verdict.scope is not None
    assert (verdict.scope.eps, verdict.scope.default_eps) == (None, None)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("name", "output", "shape", "conditions"),
    [
        ("unbiased_variance", "y", (1, 3), ()),
        ("dweight_averaged", "dweight", (2, 3), ()),
        ("second_block_of_a_row_ignored", "y", (1, 1025), ()),
        ("dx_without_mean_of_dy", "dx", (1, 3), ()),
        ("weight_ignored_without_bias", "y", (1, 3), ("no bias is given",)),
    ],
)
def test_the_example_has_as_few_rows_and_elements_as_show_the_mistake(
    name: str,
    output: str,
    shape: tuple[int, ...],
    conditions: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_small_catalogue(monkeypatch, largest=9000, one_in=4)
    example = verify(mutant(name), quick=True, dtypes=("float32",)).example
    assert example is not None
    assert attempt(mutant(name), example.case).status is Status.WRONG
    assert (example.output, example.shape, example.conditions) == (output, shape, conditions)
    assert (example.dy is None) is (output == "y")
    assert bool(example.x) is (len(example.computed) > 1)
    assert (example.bias is None) is bool(conditions)
    if name == "unbiased_variance":
        assert (example.x, example.weight, example.bias) == ((1, 2, 4), (), ())
        assert example.computed == pytest.approx((-0.872870, -0.218217, 1.091087), abs=1e-5)
        assert example.exact == pytest.approx((-1.069042, -0.267260, 1.336302), abs=1e-5)
        assert example.allowed_ulp is not None
        assert example.error_ulp > 1e6 > 1e3 > example.allowed_ulp


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
    file.write_text("def norm(x, *others):\n    return 2 * x\n")
    case = Case(implementation=f"{file}:norm", shape=(2, 3), threads=threads)
    command = command_of(case, repr(case.implementation), "")
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
