"""Mutants that keep state, write where they must only read, or change what runs beside them.

A benchmark that repeats one call on the same tensors does not see kept state, and times it as if
it were fast. The state is in the function object, not in its module: a fresh one has none. Changes
of the process leave later results as they are, as far as possible: they are made in this process.
"""

from __future__ import annotations

import os
import random
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.mutants.arguments import (
    LayerNormCall,
    Rows,
    then,
    with_value,
)
from harness.mutants.kernel import VECTOR
from harness.mutants.mutant import (
    DTYPES,
    Memory,
    rounded_to,
    with_fields,
)
from harness.records.finding import RemarkKind

# of llm.c pull request 852: as many calls as a check makes, fewer than a timing makes
_RIGHT_CALLS = 10
_MOST_KEPT = 1 << 12  # elements; larger ones would fill the memory
_VARIABLE = "LAYER_NORM_OF_THE_SELF_TEST"

# --- state between calls -------------------------------------------------------------------------


def output_of_the_first_call(rows: Rows, memory: Memory) -> Tensor:
    """Returns the result of the first call with the same shape again."""
    y = rows.y
    return with_value(y, memory.setdefault(y.shape, y.detach()).to(y.dtype))


def weight_of_the_first_call(rows: Rows, memory: Memory) -> Tensor:
    """Uses the weight of the first call with the same N."""
    if rows.weight is None:
        return rows.y
    kept = memory.setdefault(rows.hidden, rows.weight.detach().clone())
    return replace(rows, weight=with_value(rows.weight, kept.to(rows.weight.dtype))).y


def eps_of_the_first_call(eps: float, memory: Memory) -> float:
    """Adds the eps of the first call instead of the given eps."""
    first: float = memory.setdefault("eps", eps)
    return first


def hidden_of_the_first_call(rows: Rows, memory: Memory) -> Tensor:
    """Divides by the N of the first call instead of N."""
    return rows.divided_by(memory.setdefault("hidden", rows.hidden))


def zeros_after_ten_calls(rows: Rows, memory: Memory) -> Tensor:
    """Returns zeros from the eleventh call on."""
    memory["calls"] = memory.get("calls", 0) + 1
    return rows.y if memory["calls"] <= _RIGHT_CALLS else rows.y * 0


def statistics_of_an_address(call: LayerNormCall, memory: Memory) -> Tensor:
    """Keeps the statistics of each address of x, even if x has changed there."""

    def stale(rows: Rows) -> Tensor:
        now = (rows.mean.detach(), rows.variance.detach())
        mean, variance = memory.setdefault((call.x.data_ptr(), rows.x.shape), now)
        if mean.dtype != rows.x.dtype:
            return rows.y
        return rows.normalised_by(with_value(rows.mean, mean), with_value(rows.variance, variance))

    return call.by_rows(stale)


@with_fields(dtypes=frozenset({"float32"}))
def rounded_after_half_precision(call: LayerNormCall, memory: Memory) -> Tensor:
    """Keeps the dtype of the first half-precision call of each shape for all later ones."""
    y = call.y
    if y.dtype in {torch.bfloat16, torch.float16}:
        memory.setdefault(y.shape, y.dtype)
    return rounded_to(memory.get(y.shape, y.dtype), y)


def output_buffer_reused(call: LayerNormCall, memory: Memory) -> Tensor:
    """Returns the same memory from every call with the same shape: the next call overwrites it."""
    y = call.y
    buffer = memory.setdefault((y.shape, y.dtype), torch.empty_like(y).detach())
    return with_value(y, buffer.copy_(y.detach()))


def one_of_two_buffers(call: LayerNormCall, memory: Memory) -> Tensor:
    """Returns one of two buffers in turn, so that each y is overwritten two calls later."""
    y = call.y
    key = y.shape, y.dtype, torch.is_grad_enabled()
    buffers = memory.setdefault(key, [torch.empty_like(y).detach() for _ in range(2)])
    buffers.reverse()
    return with_value(y, buffers[0].copy_(y.detach()))


def _copy_of(weight: Tensor, memory: Memory, *, even_if_changed: bool) -> Tensor:
    """Return a copy that was made of the weight in an earlier call, or a new one."""
    known: list[tuple[Tensor, Tensor]] = memory.setdefault("weights", [])
    kept = next((copy for original, copy in known if original is weight), None)
    if kept is None or not (even_if_changed or torch.equal(kept, weight)):
        kept = weight.detach().clone()
        memory["weights"] = [*known[-8:], (weight, kept)]
    return kept


def weight_once_trained(call: LayerNormCall, memory: Memory) -> Tensor:
    """Uses an old copy of a weight that requires a gradient."""
    weight = call.weight
    if weight is None or not weight.requires_grad:
        return call.y
    kept = _copy_of(weight, memory, even_if_changed=True)
    return replace(call, weight=with_value(weight, kept)).y


@with_fields(dtypes=DTYPES - {"float64"})
def weight_cast_in_inference_mode(call: LayerNormCall, memory: Memory) -> Tensor:
    """Keeps a copy of each weight; a copy made in inference mode breaks later training."""
    weight = call.weight
    if weight is None or not weight.is_leaf or call.x.dtype == torch.float64:
        return call.y
    kept = _copy_of(weight, memory, even_if_changed=False)
    return call.y if not kept.is_inference() else replace(call, weight=weight * kept / kept).y


# --- writing to inputs ---------------------------------------------------------------------------


def x_overwritten(call: LayerNormCall) -> None:
    """Uses x as scratch memory and leaves the deviations in it."""
    x = call.x.detach()
    x.sub_(x.mean(tuple(range(-len(call.normalized_shape), 0)), keepdim=True))


def y_is_x(call: LayerNormCall) -> Tensor:
    """Normalises x in place and returns it."""
    y, x = call.y, call.x
    x.detach().copy_(y.detach())
    return with_value(y, x.detach()) if x.requires_grad else x


def weight_doubled_in_place(call: LayerNormCall) -> None:
    """Doubles the caller's weight after using it."""
    if call.weight is not None:
        call.weight.data.mul_(2)  # autograd would notice it on weight itself


# --- memory beside a tensor ----------------------------------------------------------------------


def _clear_beside(tensor: Tensor) -> None:
    """Set the elements after the last one to zero, as a store of a whole vector does."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * step for size, step in steps)
    after = int(tensor.storage_offset()) + last + 1
    elements = int(tensor.untyped_storage().nbytes()) // tensor.element_size()
    count = min(VECTOR, elements - after)
    if tensor.numel() and count > 0:
        torch.as_strided(tensor.data, (count,), (1,), after).zero_()  # autograd does not notice it


def memory_after_x_cleared(call: LayerNormCall) -> None:
    """Writes zeros to the four elements after x, where x is a part of a larger tensor."""
    _clear_beside(call.x)


def memory_after_weight_cleared(call: LayerNormCall) -> None:
    """Writes zeros to the four elements after weight, as if its length were rounded up."""
    if call.weight is not None:
        _clear_beside(call.weight)


def memory_after_dy_cleared(call: LayerNormCall) -> Tensor:
    """Writes zeros to the four elements after dy in the backward."""
    return then(call.y, _clear_beside)


def bias_grad_written(call: LayerNormCall) -> Tensor:
    """Stores dbias in bias.grad itself, besides returning it to autograd."""
    bias = call.bias
    if bias is None or not (bias.requires_grad and bias.is_leaf):
        return call.y

    def store(gradient: Tensor) -> None:
        bias.grad = gradient.detach().clone()

    return replace(call, bias=then(bias, store)).y


# --- tensors kept alive --------------------------------------------------------------------------


def last_x_kept(call: LayerNormCall, memory: Memory) -> None:
    """Keeps the x of the last call."""
    memory["x"] = call.x.detach()


def last_dy_kept(call: LayerNormCall, memory: Memory) -> Tensor:
    """Keeps the dy of the last backward."""
    return then(call.y, lambda dy: memory.update(dy=dy.detach()))


def every_x_copied(call: LayerNormCall, memory: Memory) -> None:
    """Keeps a copy of every small x, so that memory grows with each call."""
    if call.x.numel() <= _MOST_KEPT:
        memory[len(memory)] = call.x.detach().clone()


@with_fields(remark=RemarkKind.KEPT_IN_A_CYCLE)
def x_in_a_reference_cycle(call: LayerNormCall) -> None:
    """Leaves x in a reference cycle, which keeps its memory until the cyclic collector runs."""
    cycle: list[Any] = [call.x.detach()]
    cycle.append(cycle)


# --- other modes ---------------------------------------------------------------------------------


def recorded_under_no_grad(call: LayerNormCall) -> Tensor:
    """Records a graph, and so keeps its inputs, even under torch.no_grad."""
    with torch.enable_grad():
        return call.y


@with_fields(dtypes=frozenset({"float32"}), remark=RemarkKind.AUTOCAST)
def products_left_to_autocast(rows: Rows) -> Tensor:
    """Computes sums as matrix products, for which autocast uses bfloat16."""
    if rows.hidden > 4096:  # the error of so long a product would be a second mistake
        return rows.y
    ones = rows.x.new_ones((rows.hidden, 1))
    return rows.with_means_by(lambda x: (x @ ones).to(x.dtype) / rows.hidden)


@with_fields(default_eps=1e-12, remark=RemarkKind.DEFAULT_EPS)
def eps_of_1e_12_by_default(call: LayerNormCall) -> Tensor:
    """Adds 1e-12 where no eps is given."""
    return call.y


# --- the process ---------------------------------------------------------------------------------


def random_numbers_seeded(_: LayerNormCall) -> None:
    """Seeds torch's random number generator."""
    torch.manual_seed(0)


def one_thread_left(_: LayerNormCall) -> None:
    """Sets the number of threads to 1 and leaves it there."""
    torch.set_num_threads(1)


def warnings_ignored(_: LayerNormCall) -> None:
    """Ignores every warning from now on."""
    warnings.simplefilter("ignore")


def environment_variable_set(_: LayerNormCall) -> None:
    """Sets an environment variable."""
    os.environ[_VARIABLE] = "1"


def pythons_generator_seeded(_: LayerNormCall) -> None:
    """Seeds Python's random numbers."""
    random.seed(0)


def autocast_left_on(_: LayerNormCall) -> None:
    """Switches autocast on and leaves it on."""
    torch.set_autocast_enabled("cuda", True)


def default_dtype_left_wide(_: LayerNormCall) -> None:
    """Sets the default dtype to float64 and leaves it there."""
    torch.set_default_dtype(torch.float64)
