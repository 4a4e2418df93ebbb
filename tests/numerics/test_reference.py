"""The exact result of a case, block by block, kept or computed again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.cases.inputs import Inputs, make_inputs
from harness.numerics import oracle
from harness.numerics.oracle import Reference
from harness.records import Case, Direction


def joined(reference: Reference) -> dict[str, Tensor]:
    blocks = list(reference)
    rows = {name: torch.cat([getattr(block, name)[0] for block in blocks]) for name in ("y", "dx")}
    sums = {
        name: torch.cat([getattr(block, name)[0] for block in blocks]).sum(0)
        for name in ("dweight", "dbias")
    }
    return rows | sums


@pytest.fixture(params=["float32", "float64"])
def many_rows(request: pytest.FixtureRequest) -> tuple[Inputs, Case]:
    case = Case(
        implementation="none",
        shape=(5, 4, 9),
        dtype=request.param,
        distribution="uniform",
        direction=Direction.BACKWARD,
    )
    return make_inputs(case), case


def test_many_small_blocks_give_what_one_large_block_gives(
    many_rows: tuple[Inputs, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Reference(*many_rows)
    monkeypatch.setattr(oracle, "_BLOCK_ELEMENTS", 27)  # three rows: 6 blocks of 3, one of 2
    parts = Reference(*many_rows)
    assert [(part.start, part.stop) for part in parts][-2:] == [(15, 18), (18, 20)]
    monkeypatch.undo()
    assert len(list(whole)) == 1
    one, many = joined(whole), joined(parts)
    assert torch.equal(one["y"], many["y"])
    assert torch.equal(one["dx"], many["dx"])
    for name in ("dweight", "dbias"):  # added in another order
        torch.testing.assert_close(one[name], many[name], rtol=1e-13, atol=1e-13)


def test_a_small_reference_is_kept_for_the_next_use(many_rows: tuple[Inputs, Case]) -> None:
    reference = Reference(*many_rows)
    first = list(reference)
    spent = reference.spent_s
    assert spent > 0
    assert all(a is b for a, b in zip(first, reference, strict=True))
    assert reference.spent_s == spent


def test_a_large_reference_is_computed_again_and_is_the_same(
    many_rows: tuple[Inputs, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "_KEPT_ELEMENTS", 1)
    reference = Reference(*many_rows)
    (first,), (second,) = list(reference), list(reference)
    assert first is not second
    assert torch.equal(first.y[0], second.y[0])
    assert torch.equal(first.y[1], second.y[1])


def test_a_reference_left_half_way_starts_again_from_the_first_row(
    many_rows: tuple[Inputs, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "_BLOCK_ELEMENTS", 27)
    reference = Reference(*many_rows)
    next(iter(reference))
    assert [block.start for block in reference] == [0, 3, 6, 9, 12, 15, 18]


def test_a_missing_parameter_is_neutral(many_rows: tuple[Inputs, Case]) -> None:
    inputs, case = many_rows
    (block,) = Reference(replace(inputs, weight=None, bias=None), case)
    assert torch.equal(block.y[0], block.normalised[0])
