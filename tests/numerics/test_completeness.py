"""An output that is not complete when a call returns is found, whatever its values are."""

from __future__ import annotations

import pytest
import torch
from factories.verify_targets import every_dtype
from torch import Tensor

from harness.numerics.outputs import (
    Outputs,
    bits_of,
    copies_of,
    fill_free_memory,
    incomplete_output,
)

NAN, INFINITY = float("nan"), float("inf")


def outputs_in(dtype: str) -> Outputs:
    rows = torch.arange(-6.0, 6).reshape(3, 4).to(getattr(torch, dtype))
    return Outputs(y=rows, dx=rows * 2, dweight=rows[0].clone(), dbias=rows[1].clone())


@every_dtype
def test_memory_that_was_never_written_is_found(dtype: str) -> None:
    like = torch.ones(61, 67, dtype=getattr(torch, dtype))
    fill_free_memory([like])
    # at most some of them get memory that was free before it was filled
    new = [Outputs(y=torch.empty_like(like)) for _ in range(9)]
    said = {incomplete_output(copies_of(outputs), outputs) for outputs in new}
    assert "y has elements that were never written: it returns uninitialised memory" in said


@every_dtype
@pytest.mark.parametrize("value", [NAN, -NAN, INFINITY])
def test_written_values_are_complete_whatever_they_are(dtype: str, value: float) -> None:
    outputs = outputs_in(dtype)
    outputs.y[1, 2] = value
    assert incomplete_output(copies_of(outputs), outputs) is None
    outputs.y[1] = (outputs.y[1] - value).amax()  # NaN by arithmetic, as a reduction gives it
    assert incomplete_output(copies_of(outputs), outputs) is None


@pytest.mark.parametrize("name", ["y", "dx", "dweight", "dbias"])
@pytest.mark.parametrize("later", [9.0, NAN])
def test_an_output_that_changes_after_the_call_is_named(name: str, later: float) -> None:
    outputs = outputs_in("float32")
    copies = copies_of(outputs)
    getattr(outputs, name).reshape(-1)[-1] = later
    said = incomplete_output(copies, outputs)
    assert said is not None
    assert said.startswith(f"{name} was still written after the call had returned")


def test_a_nan_that_is_written_over_is_a_change() -> None:
    outputs = outputs_in("float32")
    outputs.y[0, 0] = NAN
    copies = copies_of(outputs)
    outputs.y[0, 0] = 1
    assert incomplete_output(copies, outputs) is not None


def test_copies_record_no_graph_and_leave_out_what_is_none() -> None:
    copies = copies_of(Outputs(y=torch.ones(2, 3, requires_grad=True) * 2))
    assert not copies.y.requires_grad
    assert (copies.dx, copies.dweight, copies.dbias) == (None, None, None)


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.ones(3, 2).t(), torch.ones(2, 3), True),
        (torch.ones(1, 9)[:, ::9], torch.ones(1, 1), True),
        (torch.tensor([2 - 3j]).conj().imag, torch.tensor([3.0]), True),
        (torch.empty(0, 4), torch.empty(0, 4), True),
    ],
    ids=["nan", "minus_zero", "transposed", "one_strided_element", "negated", "empty"],
)
def test_bits_are_those_of_the_values_in_order(one: Tensor, other: Tensor, is_equal: bool) -> None:
    assert torch.equal(bits_of(one), bits_of(other)) is is_equal
