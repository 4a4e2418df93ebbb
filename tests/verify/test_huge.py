"""Rows beyond what 31 bits count are asked for, with that limit lowered to be quick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.verify import verify
from harness.verify.checks import huge
from harness.verify.checks.huge import huge_findings
from harness.verify.findings import Declined, Violation
from harness.verify.result import Verdict
from harness.verify.trial import first_case
from implementations import Implementation, UnsupportedError, native

ROWS = 16
PLENTY = 1 << 40
CASE = first_case("implementation", "bfloat16", "cpu")


@pytest.fixture(autouse=True)
def _lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge, "HIDDEN", 64)
    monkeypatch.setattr(huge, "LIMIT", ROWS * 64)
    monkeypatch.setattr(huge, "_PATTERN", 5)


def implementation(function: Callable[..., Any], **claims: Any) -> Implementation:
    return Implementation(name="implementation", function=function, source="", **claims)


def right(x: Tensor, shape: Sequence[int], *others: Any) -> Tensor:
    return functional.layer_norm(x, tuple(shape), *others)


def found(implementation: Implementation, memory_bytes: int = PLENTY) -> list[str | Declined]:
    return list(huge_findings(implementation, CASE, memory_bytes))


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
    y = right(x, *others).clone()
    y[ROWS:] = 0
    return y


def wrapped(x: Tensor, *others: Any) -> Tensor:
    return right(torch.cat([x[:ROWS], x[: len(x) - ROWS]]) if len(x) > ROWS else x, *others)


def test_right_ones_are_right_there() -> None:
    assert found(native) == []
    assert found(implementation(right)) == []


@pytest.mark.parametrize("wrong", [unwritten, wrapped])
def test_rows_that_are_left_out_or_another_s_are_found(wrong: Callable[..., Tensor]) -> None:
    said = "y is wrong where there are more than 2^31 - 1 elements"
    assert said in found(implementation(wrong))
    assert found(implementation(wrong, forward_only=True)) == [said]


def test_gradients_that_are_left_out_are_found() -> None:
    wrong = implementation(lambda *each: RowsOfGradient.apply(right(*each)))  # type: ignore[no-untyped-call]
    assert found(wrong) == [
        f"{name} is wrong where there are more than 2^31 - 1 elements"
        for name in ("dx", "dweight", "dbias")
    ]


def test_an_error_there_is_told() -> None:
    def counting(x: Tensor, *others: Any) -> Tensor:
        if x.numel() > ROWS * 64:
            raise OverflowError("too many for an int")
        return right(x, *others)

    first, _ = found(implementation(counting))
    assert first == "raises for 19 rows of 64: OverflowError: too many for an int"


def test_what_is_declined_or_does_not_fit_is_told_and_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def declining(x: Tensor, *others: Any) -> Tensor:
        raise UnsupportedError("at most 2^31 - 1 elements")

    assert [
        each.reason for each in found(implementation(declining)) if isinstance(each, Declined)
    ] == ["at most 2^31 - 1 elements"] * 2
    monkeypatch.setattr(huge, "_at_most", lambda *_: nullcontext())  # so little is too little
    forward = 2 * 19 * 64 * 2 * 5 // 4
    (left_out,) = found(native, forward)  # enough for a forward, not for a backward
    assert isinstance(left_out, Declined)
    assert not left_out.by_target
    assert "takes 0.0 GiB, of 0.0 GiB that may be used" in left_out.reason
    assert len(found(native, forward - 2)) == 2


def test_a_verdict_has_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1 << 21  # beyond what the rest of the catalogue has
    monkeypatch.setattr(huge, "LIMIT", limit)

    def wrong(x: Tensor, *others: Any) -> Tensor:
        y = right(x, *others).clone()
        if x.numel() > limit:
            y[limit // 64 :] = 0
        return y

    def verdict(huge_bytes: int | None) -> Verdict:
        target = implementation(wrong, forward_only=True)
        return verify(target, quick=True, dtypes=["bfloat16", "float64"], huge_bytes=huge_bytes)

    assert verdict(None).passed
    assert verdict(PLENTY).violations == (
        Violation(dtype="bfloat16", text="y is wrong where there are more than 2^31 - 1 elements"),
    )
    too_little = verdict(0)
    assert too_little.passed
    assert "that may be used" in too_little.declined[-1].reason
