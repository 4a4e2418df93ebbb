"""Contract checks of what surrounds a call: earlier calls, threads, streams, modes and state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from harness.numerics import Outputs, Reference, copies_of
from harness.records import Direction
from harness.records.finding import RemarkKind
from harness.run import (
    ContractViolationError,
    ImplementationError,
    checked,
    guarded,
    process_state,
    process_state_restored,
    set_caller_state,
    set_other_state,
    set_usual_state,
)
from harness.verify.checks.calls import Call, elsewhere, has_bits_of
from harness.verify.checks.contract_checks import (
    BLOCK,
    CONCURRENT,
    EVERY_SETTING,
    LONG,
    LONG_TAIL,
    MANY,
    PADDED,
    PATHS,
    SMALL,
    check,
)
from harness.verify.code import code_of
from harness.verify.in_scope import scope_of
from harness.verify.words import case_in_words
from implementations.torch_private import spin

__all__ = [
    "changed_beside_another_caller",
    "draws_no_random_numbers",
    "is_correct_on_several_threads",
    "is_correct_with_many_axes",
    "is_safe_for_concurrent_callers",
    "is_unchanged_by_modes_of_the_caller",
    "is_unchanged_by_other_dtypes",
    "keeps_accuracy_under_autocast",
    "keeps_calls_of_a_graph_apart",
    "records_no_unwanted_graph",
    "repeated_calls_agree",
    "restores_process_state",
    "restores_process_state_where_it_raises",
    "sees_new_values_at_old_addresses",
    "stays_on_the_device_of_x",
    "takes_shared_memory_and_subclasses",
    "takes_tensors_of_inference_mode",
    "tells_nearby_eps_apart",
    "tells_packed_sizes_apart",
    "works_on_the_current_stream",
]

CALLS = 100  # more than a cache of the first few results holds
_CALLS_AT_OTHER_SIZES = 12  # the number matters at one size; a ring of buffers is shorter
_MOST_S = 2.0  # a slow target gets fewer calls
_UNUSUAL = 331  # added to N gives one that was not called before
_MOST_PACKED = 1 << 21  # elements of all rows that are tried
_HELD_STRIDES = range(5, 25)  # a number in the source among these may be that of a kernel
_BESIDE = 16  # keeps the tail and the alignment of a row

_OF_SMALL_VARIANCE = "tiny_variance"  # of 1e-8: y shows eps
# equal if rounded to one, two and three digits, and far from each eps of a case
_NEARBY_EPS = (3.1e-6, 3.4e-6, 3.44e-6, 3.444e-6)
_REPEATS = 3  # a race shows in some calls only
# 257x256 and 2x20000 fill two threads of PyTorch, which gives each thread 32768 elements; 257 rows
# and 1031 do not divide evenly, 2 and 3 are fewer than the threads; 2^19 is a usual limit;
# odd and even numbers of threads, and more than a target may have tables for
_SHAPES_AND_THREADS = (
    *product(((257, 256), (2, 20_000), (3, 96)), (3, 4, 17)),
    *(((1031, 520), threads) for threads in (3, 67)),
)
_EPS_OF_CALLERS = (1e-5, 0.5)
_CONCURRENT_CALLS = 50
_MOST_CONCURRENT_S = 1.0
_SWITCH_S = 1e-6  # Python then switches threads as often as it can
# about 10 ms; trade-off: far above the time to launch a call, little beside the catalogue
_SPINS = 20_000_000


@check(Direction.FORWARD, *EVERY_SETTING, raises_where="it is called again")
def repeated_calls_agree(call: Call) -> Iterator[str]:
    """Call 100 returns what call 1 returned, with other calls in between."""
    first = call.outputs()
    kept = [_kept(first.y)]
    first = copies_of(first)
    began = perf_counter()
    other = call.changed(seed=call.case.seed + 1, eps=0.25)
    expected = copies_of(other.outputs())
    wanted = CALLS if call.case.shape == SMALL["shape"] else _CALLS_AT_OTHER_SIZES
    calls = min(wanted, max(4, int(_MOST_S / (perf_counter() - began))))
    for number in range(2, calls + 1):
        again = call.outputs()
        kept.append(_kept(again.y))
        if number in (2, calls) and call.differing(first, again):
            yield f"returns another result in call {number} than in call 1, for equal arguments"
    if other.differing(expected, other.outputs()):
        yield "returns another result after calls with other arguments"
    # bit by bit: no two random inputs have the same LayerNorm
    if torch.equal(first.y, expected.y):
        yield "returns the same result for other arguments of the same shape"
    if not all(torch.equal(y, copy) for y, copy in kept):
        yield "overwrites a y that it has returned, in a later call"
    with torch.inference_mode():
        y, copy = _kept(call.y())
        for _ in range(calls):
            other.y()
        if not torch.equal(y, copy):
            yield "overwrites a y that it has returned, in a later call in torch.inference_mode"


def _kept(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return a view of y, since a model may keep a slice of y in place of y itself, and a copy."""
    return y.detach(), y.clone()


@check(Direction.FORWARD)
def tells_packed_sizes_apart(call: Call) -> Iterator[str]:
    """Two shapes whose sizes make one number, as ``rows << 20 | N`` in a cache, have own results.

    Such a number is that of two shapes if N exceeds the factor, which is in the source.
    """
    numbers = {1, *code_of(call.target).integers}
    left, hidden = _MOST_PACKED, call.case.hidden + 3  # not the N of another check
    for factor in sorted(numbers | {1 << own for own in numbers if own < 30}):
        if factor == 0 or (left := left - factor) < 0:
            continue
        earlier = [call.changed(shape=shape) for shape in ((1, hidden), (2, hidden))]
        later, alone = (
            call.changed(shape=(1, factor + hidden + beside)) for beside in (0, _BESIDE)
        )
        for own in earlier:
            own.outputs()
        if later.beyond(later.outputs()) and not alone.beyond(alone.outputs()):
            yield f"gives a wrong y for N = {later.case.hidden} after a call with N = {hidden}"


@check(None)
def is_correct_with_many_axes(call: Call) -> Iterator[str]:
    """An x of many axes has the results of its rows, in any order in memory.

    Kernels hold some number of strides, which may be in the source. The sizes of the axes repeat,
    so that those of a row may be found at the wrong place; in an image they may all be equal.
    """
    held = {8, *(own for own in code_of(call.target).integers if own in _HELD_STRIDES)}
    shapes = [(3, 4, 6) * 2, *((1,) * (own - 10) + (2,) * min(own + 3, 13) + (6,) for own in held)]
    kinds = [*product(shapes, (1, 2, 3), ("contiguous", "reversed_axes"))]
    kinds += product([(5, 5, 5, 5)], (2, 3), ("contiguous", "channels_last"))
    for shape, dims, layout in kinds:
        with suppress(ImplementationError):  # the scope records what the target declines
            own = call.changed(shape=shape, normalized_dims=dims, layout=layout)
            wrong = own.wrong()
            if wrong and not call.changed(shape=(own.case.rows, own.case.hidden)).wrong():
                yield f"gives a wrong {wrong} for {case_in_words(own.forward().case)}"


@check(Direction.FORWARD)
def tells_nearby_eps_apart(call: Call) -> Iterator[str]:
    """Calls with nearly equal eps each use their own: a key of a cache may round eps."""
    if scope_of(call.target).eps is not None:
        return
    near = [call.changed(eps=eps, distribution=_OF_SMALL_VARIANCE) for eps in _NEARBY_EPS]
    are_right = [not own.beyond(own.outputs()) for own in near]
    if are_right[0] and not all(are_right):
        yield "adds the eps of an earlier call if both are nearly equal"


@check(None, SMALL, LONG_TAIL)
def is_unchanged_by_other_dtypes(call: Call) -> Iterator[str]:
    """A call of the same shape in another dtype leaves nothing behind that a later call uses."""
    dtype = call.case.dtype
    between = "float32" if dtype in {"bfloat16", "float16"} else "bfloat16"
    first = copies_of(call.outputs())
    try:
        other = call.changed(dtype=between, param_dtype=between)
        among = copies_of(other.outputs())
    except (ImplementationError, ContractViolationError):  # the cases in that dtype show it
        return
    where = "after a call of the same shape in another dtype"
    for own, outputs in ((call, first), (other, among)):
        yield from own.gives_another(outputs, own.outputs(), where)


@check(Direction.FORWARD, *PATHS)
def sees_new_values_at_old_addresses(call: Call) -> Iterator[str]:
    """Values that change in place, at the same address, change the result.

    So do those of a new tensor at an address that another one had, whose ``_version`` is as old.
    """
    held = replace(call, inputs=call.inputs.copies())
    for tensor in held.given.values():
        tensor.mul_(4).round_().div_(4)  # sums are exact then, in any order
    is_right = not held.beyond(held.outputs())
    for name, tensor in held.given.items():
        others = tensor.data, nn.Parameter(tensor)  # other tensor objects, of version 0
        for other in others:
            held.on(**{name: other}).outputs()
        for new, changed, how in (
            (_exchanged(tensor), tensor.data, "to the same values in another order"),
            (call.seeded(1).given[name], tensor, "in place"),
            (call.seeded(2).given[name], tensor.data, "through .data"),
        ):
            changed.copy_(new)
            moved = held.on(**{name: elsewhere(new)})
            expected = copies_of(moved.outputs())
            # a cache may find old values by what stays the same
            if moved.differing(expected, held.outputs()) or (is_right and moved.beyond(expected)):
                yield f"uses the old values of {name} after {name} was changed {how}"
            if any(moved.differing(expected, held.on(**{name: own}).outputs()) for own in others):
                yield f"uses the old values of {name} for another tensor at the same address"
    call.changed(shape=(4, 48)).outputs()  # a second shape must not raise


def _exchanged(tensor: Tensor) -> Tensor:
    """Return a copy in which two elements are exchanged: its sums and its ends stay."""
    own = tensor.flatten().clone()
    differing = (own[1:-2] != own[2:-1]).nonzero().flatten().tolist()
    if not differing:
        return tensor.flip(-1)
    inner = slice(differing[0] + 1, differing[0] + 3)
    own[inner] = own[inner].flip(0)
    return own.view(tensor.shape)


@check(None)
def is_correct_on_several_threads(call: Call) -> Iterator[str]:
    """Results on several CPU threads are as accurate as on one: no thread's part is lost."""
    before = torch.get_num_threads()
    try:
        for shape, threads in _SHAPES_AND_THREADS if call.case.device == "cpu" else ():
            own = call.changed(shape=shape)
            yield from _wrong_on_several_threads(own, threads)
            yield from _wrong_on_several_threads(own.forward(), threads)
            if not call.target.forward_only:
                yield from _wrong_with_other_threads(own, threads, "more")
                yield from _wrong_with_other_threads(own, threads, "fewer")
    finally:
        torch.set_num_threads(before)


def _wrong_on_several_threads(call: Call, threads: int) -> Iterator[str]:
    """Judge outputs that only one thread computes correctly."""
    reference = Reference(call.inputs, call.case)
    torch.set_num_threads(1)
    single = call.outputs()
    judged = [single]
    for _ in range(_REPEATS):
        torch.set_num_threads(threads)
        several = call.outputs()
        torch.set_num_threads(1)  # several threads judge small tensors no faster
        if any(has_bits_of(several, own) for own in judged):
            continue
        judged.append(copies_of(several))
        if wrong := call.beyond(several, reference):
            for name in sorted(wrong - call.beyond(single, reference)):
                yield f"gives a right {name} on one thread and a wrong one on {threads}"


def _wrong_with_other_threads(call: Call, threads: int, how_many: str) -> Iterator[str]:
    """Judge gradients that are right if forward and backward have one thread."""
    torch.set_num_threads(1)
    single = call.gradients()
    torch.set_num_threads(1 if how_many == "more" else threads)
    graph = call.graph()
    torch.set_num_threads(threads if how_many == "more" else 1)
    several = graph.gradients()
    torch.set_num_threads(1)
    for name in sorted(call.beyond(several) - call.beyond(single)):
        yield f"gives a wrong {name} if the backward has {how_many} threads than the forward"


@check(None, *CONCURRENT)
def is_safe_for_concurrent_callers(call: Call) -> Iterator[str]:
    """Threads that call at the same time each get their own results.

    Another thread has another eps, a third one fewer rows.
    """
    if call.case.device != "cpu" or "cpu" not in call.target.devices:
        return  # a GPU kernel in an interpreter, which is not thread-safe
    for one in dict.fromkeys((call.case.direction, Direction.FORWARD)):
        callers = [
            call.changed(direction=one, seed=call.case.seed + n, eps=eps)
            for n, eps in enumerate(_EPS_OF_CALLERS)
        ]
        callers.append(callers[0].changed(shape=(call.case.rows // 2, *call.case.shape[1:])))
        if name := changed_beside_another_caller(callers, Call.outputs):
            yield f"gives another {name} while a second Python thread calls it"


def changed_beside_another_caller(
    callers: Sequence[Call], outputs_of: Callable[[Call], Outputs]
) -> str | None:
    """Return an output that differs in concurrent calls; "result" if one raised.

    Args:
        callers: one for each thread.
        outputs_of: makes a call.
    """
    began = perf_counter()
    expected = [copies_of(outputs_of(own)) for own in callers]
    calls = min(_CONCURRENT_CALLS, max(2, int(_MOST_CONCURRENT_S / (perf_counter() - began))))

    def call_repeatedly(own: Call) -> list[Outputs]:
        return [outputs_of(own) for _ in range(calls)]

    interval, one_thread = sys.getswitchinterval(), partial(torch.set_num_threads, 1)
    sys.setswitchinterval(_SWITCH_S)
    try:
        with ThreadPoolExecutor(len(callers), initializer=one_thread) as pool:
            results = list(pool.map(call_repeatedly, callers))
    # one call disturbed the objects of the other, or resized a tensor that it had returned
    except (SystemError, RuntimeError, ImplementationError, ContractViolationError):
        return "result"
    finally:
        sys.setswitchinterval(interval)
    names = (
        name
        for own, right, returned in zip(callers, expected, results, strict=True)
        for outputs in returned
        for name in own.differing(right, outputs)
    )
    return next(names, None)


@check(None, SMALL, LONG_TAIL)
def works_on_the_current_stream(call: Call) -> Iterator[str]:
    """Work is queued on the current stream, behind what has been queued there before.

    The stream is kept busy, and only then gets its inputs. A kernel that is launched on another
    stream, such as the default one, does not wait, and reads what the inputs held before.
    """
    if call.case.device != "cuda":
        return
    expected = copies_of(call.outputs())  # compiles it, if it must be
    held = call.seeded(1)
    stream = torch.cuda.Stream()  # one that does not wait for the default stream
    torch.cuda.synchronize()
    try:
        with torch.cuda.stream(stream):
            spin(_SPINS)
            for tensor, new in zip(held.inputs.tensors, call.inputs.tensors, strict=True):
                tensor.copy_(new)
            found = copies_of(held.outputs())
    finally:  # nothing may be freed that another stream still reads
        torch.cuda.synchronize()
    for name in call.differing(expected, found):
        yield f"computes {name} before the work queued on the current stream is done"


@check(Direction.FORWARD)
def records_no_unwanted_graph(call: Call) -> Iterator[str]:
    """y requires a gradient only if an input does and gradients are being recorded."""
    if call.on(**call.leaves()).outputs().y.requires_grad:
        yield "returns a y that requires a gradient under torch.no_grad()"
    with torch.enable_grad():
        if call.y().requires_grad:
            yield "returns a y that requires a gradient although no input does"


@check(None, SMALL, BLOCK, LONG, PADDED)
def restores_process_state(call: Call) -> Iterator[str]:
    """Random number generators, modes and defaults are left as they were."""
    calls: list[Callable[[], object]] = [call.y]
    if call.case.direction is not Direction.FORWARD:
        calls.append(call.gradients)
    with process_state_restored():
        for make in calls:
            make()  # a first call may import modules, which may change filters or the environment
        states = (set_other_state, set_usual_state)
        for set_state, is_recording, make in product(states, (False, True), calls):
            set_state()
            torch.set_grad_enabled(is_recording)
            yield from (f"changes {name} of the process" for name in _changed_by(make))


def _changed_by(make: Callable[[], object]) -> list[str]:
    """Return the names of what a call changes in the state of the process."""
    before = process_state()
    make()
    after = process_state()
    return [name for name, value in before.items() if after[name] != value]


@check(None)
def draws_no_random_numbers(call: Call) -> Iterator[str]:
    """Not even in the first call of a row length, where a target may time its kernels."""
    first = call.changed(shape=(*call.case.shape[:-1], call.case.hidden + _UNUSUAL))
    for name in _changed_by(first.outputs):
        if "generator" in name:
            yield f"advances {name} in its first call of a row length"


@check(Direction.FORWARD)
def restores_process_state_where_it_raises(call: Call) -> Iterator[str]:
    """A call that raises for wrong shapes leaves modes as they were, too."""
    wrong = call.case.hidden + 1
    call.is_refused((wrong,))  # it may import modules

    def give_wrong_shapes() -> None:
        call.is_refused((wrong,))
        for name, parameter in call.parameters.items():
            call.is_refused(call.case.normalized_shape, **{name: parameter[:-1]})

    with process_state_restored():
        for is_recording in (False, True):
            set_usual_state()
            torch.set_grad_enabled(is_recording)
            for name in _changed_by(give_wrong_shapes):
                yield f"changes {name} of the process where it raises for a wrong shape"


@check(Direction.FORWARD, raises_where="its arguments were made in torch.inference_mode")
def takes_tensors_of_inference_mode(call: Call) -> Iterator[str]:
    """Tensors made in torch.inference_mode have no version; y of them is the same."""
    with torch.inference_mode():
        made = replace(call, inputs=call.inputs.copies())
    where = "of tensors that were made in torch.inference_mode"
    yield from call.gives_another(call.outputs(), made.outputs(), where)


class _Subclass(Tensor):
    """Without anything of its own, as users name tensors."""


@check(Direction.FORWARD)
def takes_shared_memory_and_subclasses(call: Call) -> Iterator[str]:
    """y is the same for an x that another process reads, or that is of a subclass of Tensor."""
    x = call.inputs.x
    for words, given in (
        ("in shared memory", x.clone().share_memory_()),
        ("of a subclass of torch.Tensor", x.clone().as_subclass(_Subclass)),
    ):
        with suppress(ImplementationError), torch.no_grad():
            y = guarded(call.y_of, given)()
            y = checked("y", y.as_subclass(Tensor) if isinstance(y, Tensor) else y, x)
            yield from call.gives_another(call.outputs(), Outputs(y=y), f"for an x {words}")
        if not torch.equal(given.as_subclass(Tensor), x):
            yield f"changes an x {words}"


@check(
    None, SMALL, MANY, LONG_TAIL, remark=RemarkKind.AUTOCAST, raises_where="torch.autocast is on"
)
def keeps_accuracy_under_autocast(call: Call) -> Iterator[str]:
    """Under autocast, results are as accurate as before: PyTorch's own keeps float32.

    It also returns float32 for half precision on some devices, which others may do, too.
    """
    if call.case.dtype == "float64":
        return
    function = call.target.function
    halves = {"float16": [torch.float16], "bfloat16": [torch.bfloat16]}
    dtypes = halves.get(call.case.dtype, [torch.bfloat16, torch.float16])

    def under_autocast(x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        with autocast():
            return function(x, *arguments, **named).to(x.dtype)

    inside = call.by(under_autocast)
    pairs = ((call.forward(), inside.forward()), (call, inside))
    for half, (own, other) in product(dtypes, pairs):
        autocast = partial(torch.autocast, call.inputs.x.device.type, dtype=half)
        plain = copies_of(own.outputs())
        found = [other.outputs()]
        if own.case.direction is not Direction.FORWARD:
            graph = call.graph()
            with autocast():  # the backward alone
                found.append(graph.gradients())
        if any(own.beyond(outputs) - own.beyond(plain) for outputs in found):
            yield "is less accurate under torch.autocast, where PyTorch's own computes in float32"


@check(Direction.FORWARD, raises_where="torch.set_default_device names another device")
def stays_on_the_device_of_x(call: Call) -> Iterator[str]:
    """y is on the device of x, whatever the default one, and on the meta device."""
    call.outputs()  # a first call may make a module
    meta = call.at([tensor.to("meta") for tensor in call.inputs.tensors]).forward()
    try:
        with torch.device("meta"):
            call.outputs()
        with suppress(ImplementationError):  # it may need values
            meta.y()
    except ContractViolationError as violation:
        yield f"makes its results on another device: {violation}"


@check(Direction.BACKWARD)
def keeps_calls_of_a_graph_apart(call: Call) -> Iterator[str]:
    """Another call with the same weight and bias, or with the same x, changes no gradient.

    A layer may be applied to queries and to keys, and two layers to one x.
    """
    expected = copies_of(call.gradients())
    for rows in (call.case.rows, max(call.case.rows // 2, 1)):
        graph = call.graph()
        call.changed(eps=0.25).graph(leaves=graph.leaves)
        shape = (rows, *call.case.normalized_shape)
        other = call.changed(shape=shape, normalized_dims=call.case.normalized_dims, seed=1)
        other.graph(leaves={**graph.leaves, "x": other.inputs.x.clone().requires_grad_()})
        where = "after a further call with the same tensors in a graph"
        yield from call.gives_another(expected, graph.gradients(), where)


@check(None, SMALL, BLOCK, LONG)
def is_unchanged_by_modes_of_the_caller(call: Call) -> Iterator[str]:
    """The default dtype, the deterministic mode and the anomaly mode change no result.

    In the deterministic mode torch fills new memory, so that what is never written shows; where x
    has no rows, that may be dweight and dbias.
    """
    # the first shows other statistics, too
    calls = [call.changed(distribution="mixed_conditions"), *call.each_affine()]
    with suppress(ImplementationError):  # it may decline an empty x
        empty = call.changed(shape=(0, call.case.hidden))
        empty.outputs()
        calls.append(empty)
    for own, default in product(calls, (torch.float16, torch.float64)):
        expected = copies_of(own.outputs())
        of_empty = "" if own.case.rows else ", for an empty x"
        where = f"where the default dtype is {default} and deterministic and anomaly mode are on"
        with process_state_restored():
            set_caller_state(default)
            try:
                found = own.outputs()
            except ContractViolationError as violation:
                yield f"{violation}, {where}{of_empty}"
        yield from own.gives_another(expected, found, f"{where}{of_empty}")
