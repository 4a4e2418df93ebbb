"""Mistakes beyond 2^31 elements are found; the tests lower that limit to be quick."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from factories.verify_targets import case_in, layer_norm, target
from torch import Tensor

from harness.records import Finding, Severity
from harness.verify import Verdict, verify
from harness.verify.checks import huge
from harness.verify.checks.huge import huge_findings
from implementations import Implementation, UnsupportedError, native

ROWS = 16
PLENTY = 1 << 40
CASE = case_in("bfloat16")


@pytest.fixture(autouse=True)
def _lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge, "HIDDEN", 64)
    monkeypatch.setattr(huge, "LIMIT", ROWS * 64)
    monkeypatch.setattr(huge, "_PATTERN", 5)


def violations(implementation: Implementation) -> list[str]:
    findings = huge_findings(implementation, CASE, PLENTY)
    return [each.text for each in findings if each.severity is Severity.WRONG]


def declined(implementation: Implementation, memory_bytes: int = PLENTY) -> list[Finding]:
    findings = huge_findings(implementation, CASE, memory_bytes)
    return [each for each in findings if each.severity is Severity.LIMIT]


class RowsOfGradient(torch.autograd.Function):
    """Takes dy of the first rows alone, as an index that wraps around would."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        kept = dy.clone()
        kept[ROWS:] = 0
        return kept


def unwritten(x: Tensor, *others: Any) -> Tensor:
    y = layer_norm(x, *others).clone()
    y[ROWS:] = 0
    return y


def wrapped(x: Tensor, *others: Any) -> Tensor:
    return layer_norm(torch.cat([x[:ROWS], x[: len(x) - ROWS]]) if len(x) > ROWS else x, *others)


def test_a_right_target_has_no_finding() -> None:
    for implementation in (native, target(layer_norm)):
        assert list(huge_findings(implementation, CASE, PLENTY)) == []


@pytest.mark.parametrize("wrong", [unwritten, wrapped])
def test_rows_that_are_left_out_or_swapped_are_found(wrong: Callable[..., Tensor]) -> None:
    assert any(text.startswith("gives a wrong y") for text in violations(target(wrong)))
    (text,) = violations(target(wrong, forward_only=True))
    assert text.startswith("gives a wrong y")


def test_gradients_that_are_left_out_are_found() -> None:
    wrong = target(lambda *each: RowsOfGradient.apply(layer_norm(*each)))
    texts = [text.partition(" for")[0] for text in violations(wrong)]
    assert texts == [f"gives a wrong {name}" for name in ("dx", "dweight", "dbias")]


def test_an_error_there_is_a_violation() -> None:
    def counting(x: Tensor, *others: Any) -> Tensor:
        if x.numel() > ROWS * 64:
            raise OverflowError("too many for an int")
        return layer_norm(x, *others)

    first, _ = violations(target(counting))
    assert "19 rows of 64: OverflowError: too many for an int" in first


def test_an_unsupported_size_is_declined() -> None:
    def declining(x: Tensor, *others: Any) -> Tensor:
        raise UnsupportedError("at most 2^31 - 1 elements")

    assert [each.text for each in declined(target(declining))] == ["at most 2^31 - 1 elements"] * 2
    assert violations(target(declining)) == []


def test_a_size_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge, "_memory_limit", lambda *_: nullcontext())  # too low a limit to run
    for_a_forward = 2 * 19 * 64 * 2 * 5 // 4
    (left_out,) = declined(native, for_a_forward)
    assert left_out.kind == "left_out"
    assert "of 4.75 KiB" in left_out.text
    assert len(declined(native, for_a_forward - 2)) == 2


@pytest.mark.usefixtures("small_catalogue")
def test_a_verdict_has_the_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1 << 17  # more elements than all other cases and checks have
    monkeypatch.setattr(huge, "LIMIT", limit)

    def wrong(x: Tensor, *others: Any) -> Tensor:
        y = layer_norm(x, *others).clone()
        if x.numel() > limit:
            y[limit // 64 :] = 0
        return y

    def verdict(huge_bytes: int) -> Verdict:
        return verify(
            target(wrong, forward_only=True),
            quick=True,
            dtypes=["bfloat16", "float64"],
            fail_fast=True,
            huge_bytes=huge_bytes,
        )

    (violation,) = verdict(PLENTY).violations
    assert (violation.kind, violation.dtypes) == (
        "handles_more_than_2_31_elements",
        ("bfloat16",),
    )
    too_little = verdict(0)
    assert too_little.passed
    assert too_little.declined[-1].kind == "left_out"
