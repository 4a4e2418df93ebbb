"""What a verdict says of a wrong target: mistakes that agree, where, and the smallest example."""

from __future__ import annotations

import shlex
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from factories.commanding import call
from factories.small_catalogue import use_small_catalogue
from factories.verify_targets import layer_norm, mutant, quick
from torch import Tensor

from harness.records import RemarkKind, Severity
from harness.verify import Verdict

OF_EPS = {RemarkKind.DEFAULT_EPS, RemarkKind.SHOWN_EPS}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try few cases alone."""
    use_small_catalogue(monkeypatch, largest=1100, contract=False, source=False)


def causes_of(verdict: Verdict, kind: str) -> list[Any]:
    return [cause for cause in verdict.of(Severity.CAUSE) if cause.kind == kind]


def fixed(x: Tensor, normalized_shape: Any, weight: Tensor, bias: Tensor) -> Tensor:
    """A fixed eps and a wrong variance."""
    deviation = x - x.mean(-1, keepdim=True)
    variance = deviation.square().sum(-1, keepdim=True) / (x.shape[-1] - 0.5)
    return deviation * (variance + 1e-5).rsqrt() * weight + bias


@pytest.mark.parametrize(
    ("target", "is_of_eps"),
    [
        (mutant("eps_ignored"), True),
        (fixed, False),
    ],
)
def test_suggestions_agree_and_no_eps_is_stated_unless_the_variance_is_right(
    target: Any, is_of_eps: bool
) -> None:
    verdict = quick(target)
    assert verdict.is_wrong
    causes = causes_of(verdict, "mistake")
    assert len(causes) <= 2
    for one, other in combinations(causes, 2):  # two explanations of one result exclude each other
        assert not {*one.dtypes} & {*other.dtypes} & {*one.evidence} & {*other.evidence}
    stated = [cause.text for cause in causes if "eps" in cause.text]
    stated += [fact.text for fact in verdict.remarks if fact.kind in OF_EPS]
    has_eps = verdict.scope.default_eps not in {None, 1e-5} or verdict.scope.eps is not None
    assert (bool(stated) or has_eps) is is_of_eps


def wrong_from_130(x: Tensor, *arguments: Any) -> Tensor:
    """Doubles dx in rows of 130 elements or more."""
    if x.shape[-1] >= 130 and x.requires_grad:
        x = 2 * x - x.detach()
    return layer_norm(x, *arguments)


def test_the_verdict_names_where_outputs_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_catalogue(monkeypatch, largest=1000, contract=False, source=False)
    (found,) = causes_of(quick(wrong_from_130, normalized_dims=1), "trigger")
    assert found.text == "dx wrong where N >= 130"


@pytest.mark.parametrize(
    ("name", "output", "shape", "conditions"),
    [
        ("dweight_averaged", "dweight", (2, 3), ()),
        ("weight_ignored_without_bias", "y", (1, 3), ("no bias is given",)),
    ],
)
def test_the_example_has_as_few_rows_and_elements_as_show_the_mistake(
    name: str, output: str, shape: tuple[int, ...], conditions: tuple[str, ...]
) -> None:
    example = quick(mutant(name)).example
    assert (example.output, example.shape, example.conditions) == (output, shape, conditions)
    assert (example.bias is None) is bool(conditions)
    assert example.commands.startswith("from layernorm_bench import verify_case")  # of an object


UNBIASED = """
def unbiased(x, normalized_shape, weight, bias, eps):
    deviation = x - x.mean(-1, keepdim=True)
    variance = deviation.square().sum(-1, keepdim=True) / max(x.shape[-1] - 1, 1)
    return deviation * (variance + eps).rsqrt() * weight + bias
"""


def test_the_example_shows_the_numbers_and_the_lines_that_reproduce_it_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(UNBIASED)
    verdict = quick(f"{file}:unbiased")
    assert verdict.of(Severity.CAUSE)[0].text.startswith("divides the variance by N-1")
    exec(verdict.reproduce, {})
    printed = capsys.readouterr().out
    assert "'wrong'" in printed
    example = verdict.example
    assert (example.shape, example.x, example.weight, example.bias) == ((1, 3), (1, 2, 4), (), ())
    assert example.computed == pytest.approx((-0.872870, -0.218217, 1.091087), abs=1e-5)
    assert example.exact == pytest.approx((-1.069042, -0.267260, 1.336302), abs=1e-5)
    assert example.error_ulp > 1e6 > 1e3 > example.allowed_ulp
    program, *arguments = shlex.split(example.commands)
    repeated = call(*arguments)
    assert (program, repeated.exit_code) == ("layernorm-bench", 0)
    assert "wrong" in repeated.stdout


def test_an_inaccurate_target_has_the_example_of_its_worst_element() -> None:
    verdict = quick("native", "bfloat16")
    finding, *_ = verdict.of(Severity.INACCURATE)
    example = verdict.example
    assert example.case == finding.evidence.case
    assert finding.kind == "column_sums"
    assert example.output in {"dweight", "dbias"}
    assert example.error_ulp > example.allowed_ulp
    assert (len(example.computed), example.x) == (1, ())
