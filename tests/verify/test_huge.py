"""Mistakes beyond 2^31 elements or 2^24 rows are found; the tests lower these limits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from factories.verify_targets import case_in, layer_norm, quick, raising, target, then, with_dy
from torch import Tensor

from harness.records.finding import OF_NATIVE
from harness.verify.checks import huge
from implementations import Implementation, UnsupportedError, native

ROWS = 16
PLENTY = 1 << 40


@pytest.fixture(autouse=True)
def _lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge, "HIDDEN", 64)
    monkeypatch.setattr(huge, "LIMIT", ROWS * 64)
    monkeypatch.setattr(huge, "_PATTERN", 5)
    monkeypatch.setattr(huge, "ROWS", ROWS)


def said(implementation: Implementation, memory_bytes: int = PLENTY) -> list[str]:
    found = huge.huge_findings(implementation, case_in("bfloat16"), memory_bytes)
    return [f"{own.severity}: {own.text}" for own in found]


def first_rows(tensor: Tensor) -> Tensor:
    """The first rows alone, as an index that wraps around reaches."""
    return tensor * (torch.arange(len(tensor)) < ROWS)[:, None]


forgetful, unwritten = with_dy(first_rows), then(first_rows)
counting = raising(OverflowError("too many for an int"), lambda x: len(x) > ROWS)
declining = raising(UnsupportedError("at most 2^31 - 1 elements"))
BEYOND = "for more than 2^31 - 1 elements"
RAISES = "wrong: raises for 19 rows of 64: OverflowError: too many for an int"


@pytest.mark.parametrize(
    ("function", "forward_only", "texts"),
    [
        (native.function, False, []),
        (unwritten, True, [f"wrong: gives a wrong y {BEYOND}"]),
        (
            forgetful,
            False,
            [f"wrong: gives a wrong {name} {BEYOND}" for name in ("dx", "dweight", "dbias")],
        ),
        (counting, False, [RAISES, RAISES]),
        (declining, False, ["limit: at most 2^31 - 1 elements"] * 2),
    ],
)
def test_what_is_wrong_beyond_the_limit_is_found(
    function: Callable[..., Tensor], forward_only: bool, texts: list[str]
) -> None:
    assert said(target(function, forward_only=forward_only)) == texts


@pytest.mark.parametrize(
    ("function", "texts"),
    [(layer_norm, []), (unwritten, ["gives a wrong y for more than 2^24 rows"])],
)
def test_what_is_wrong_in_later_rows_is_found(
    function: Callable[..., Tensor], texts: list[str]
) -> None:
    found = huge.large_findings(target(function), case_in("float32"), PLENTY)
    assert [own.text for own in found] == texts


def test_sums_in_order_are_right_in_a_long_row_of_float64() -> None:
    def in_order(x: Tensor, *others: Any) -> Tensor:
        return layer_norm(x, *others) * (1 + x.shape[-1] * 2.0**-53)  # rounded once per element

    subject = target(in_order, forward_only=True)
    assert not [*huge.large_findings(subject, case_in("float64"), PLENTY)]


def test_a_size_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge, "_memory_limit", lambda *_: nullcontext())  # too low a limit to run
    for_a_forward = 2 * 19 * 64 * 2 * 5 // 4
    backward = "limit: takes 9.5 KiB, of 4.75 KiB that may be used"
    assert said(native, for_a_forward) == [backward]
    assert len(said(native, for_a_forward - 2)) == 2


@pytest.mark.usefixtures("small_catalogue")
@pytest.mark.parametrize(
    ("huge_bytes", "kinds"),
    [
        (PLENTY, [("handles_more_than_2_31_elements", ("bfloat16",))]),
        (0, [("left_out", ())]),
        (None, []),
    ],
)
def test_a_verdict_has_the_findings(
    huge_bytes: int | None, kinds: list[tuple[str, tuple[str, ...]]], monkeypatch: Any
) -> None:
    # more elements than all other cases and checks have, and no constant of the target
    monkeypatch.setattr(huge, "LIMIT", 1 << 17)

    def wrong(x: Tensor, *others: Any) -> Tensor:
        y = layer_norm(x, *others).clone()
        y.view(-1)[huge.LIMIT :] = 0
        return y

    subject = target(wrong, forward_only=True)
    verdict = quick(subject, "bfloat16", fail_fast=True, huge_bytes=huge_bytes)
    found = [own for own in verdict.findings if own.kind not in OF_NATIVE]
    assert [(own.kind, own.dtypes) for own in found] == kinds
