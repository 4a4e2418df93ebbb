"""Is this a LayerNorm, of what scope, how good a one, and if it is none, which mistake is it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import implementations
from harness.records import Case, Direction, Status
from harness.verify.cases.catalogue import FULL, QUICK
from harness.verify.find_scope import find_scope
from harness.verify.identify import meaning_of, what_is_raised
from harness.verify.pace import Pace
from harness.verify.result import Verdict
from harness.verify.scope import InScope
from harness.verify.trial import Trial, try_case
from harness.verify.verification import Verification
from implementations import CallOptions
from implementations.contract import Implementation, UnsupportedError

__all__ = ["DTYPES", "assert_layer_norm", "verify", "verify_case"]

DTYPES = ("float32", "bfloat16", "float16", "float64")

Target = str | Implementation | Callable[..., Any]


def verify(
    target: Target,
    *,
    quick: bool = False,
    dtypes: Sequence[str] = DTYPES,
    directions: Sequence[Direction] = tuple(Direction),
    device: str = "cpu",
    eps: float | None = None,
    normalized_dims: int | None = None,
    channels_first: bool = False,
    init: Mapping[str, object] | None = None,
    fail_fast: bool = False,
    time_budget_s: float | None = None,
    huge_bytes: int | None = None,
    crashed: Mapping[Case, str] | None = None,
    on_case: Callable[[Case], None] = lambda case: None,
    on_progress: Callable[[Callable[[], Verdict]], None] = lambda verdict: None,
) -> Verdict:
    """Verify one LayerNorm on the whole catalogue, within what it takes.

    Args:
        target: an implementation, a function, a ``torch.nn.Module`` class or instance, a
            ``torch.autograd.Function`` class, or what :func:`implementations.find` finds. What
            declares nothing is held to what PyTorch's own kernel keeps or, if running sums explain
            all that is beyond, to those.
        quick: take the short catalogue (seconds) instead of the full one (minutes).
        dtypes: of x, by name.
        directions: passes to try; without a backward one, gradients are not looked at.
        device: device kind.
        eps: the only eps to verify, of a target that takes none or whose eps cannot be measured.
        normalized_dims: the only number of trailing axes to normalise over.
        channels_first: whether x is (batch, channels, ...) and the channels are normalised.
        init: arguments of the target's constructor, or of the function, by name.
        fail_fast: stop at the first failure: it says whether, not which mistake or how good.
        time_budget_s: seconds after which no case is begun; the most telling come first.
        huge_bytes: also try more elements than 31 bits count, where there is so much memory: it
            takes 10 GiB for a forward, 20 for a backward; None leaves them out.
        crashed: cases that have ended a process, with how; they are not tried again, and wrong.
        on_case: called with each case before it is tried.
        on_progress: called after each case with what makes a verdict of what was found so far.

    Raises:
        implementations.TargetError: ``target`` is a text that names nothing.
    """
    options = CallOptions(
        eps=eps, normalized_dims=normalized_dims, channels_first=channels_first, init=init or {}
    )
    implementation = as_implementation(target, options)
    forward_only = implementation.forward_only or not {*directions} - {Direction.FORWARD}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    verification = Verification(
        implementation=replace(implementation, forward_only=forward_only),
        handle=repr(target) if isinstance(target, str) else implementation.name,
        dtypes=tuple(dtypes),
        device=device,
        options=options,
        fail_fast=fail_fast,
        pace=Pace(time_budget_s),
        crashed=crashed or {},
        on_case=on_case,
        on_progress=on_progress,
    )
    try:
        verification.run(QUICK if quick else FULL, huge_bytes)
    finally:
        torch.set_num_threads(before)
    return verification.verdict()


def verify_case(
    target: Target,
    shape: tuple[int, ...],
    *,
    options: CallOptions | None = None,
    **axes: Any,
) -> Trial:
    """Try one case, given as the fields of :class:`harness.records.Case`; plain texts will do.

    Args:
        target: as :func:`verify` takes it.
        shape: of x, its last axes normalised.
        options: what the user says of the target.
        **axes: other fields of the case.

    Raises:
        implementations.TargetError: ``target`` is a text that names nothing.
    """
    options = options or CallOptions()
    implementation = as_implementation(target, options)
    if "direction" in axes:
        axes["direction"] = Direction(axes["direction"])
    case = Case(implementation=implementation.name, shape=shape, **axes)
    try:
        meaning = meaning_of(implementation, case.device)
        scope, _ = find_scope(
            implementation, meaning, (case.dtype,), case.device, options, what_is_raised
        )
    except UnsupportedError as error:  # it answers nothing
        return Trial(case=case, status=Status.UNSUPPORTED, reason=str(error))
    function: Any = InScope(implementation.function, scope)
    return try_case(replace(implementation, function=function), case)


def assert_layer_norm(
    target: Target,
    *,
    quick: bool = True,
    strict: bool = False,
    dtypes: Sequence[str] = DTYPES,
    directions: Sequence[Direction] = tuple(Direction),
    device: str = "cpu",
    eps: float | None = None,
    normalized_dims: int | None = None,
    channels_first: bool = False,
    init: Mapping[str, object] | None = None,
) -> None:
    """Fail, saying which mistake it is, unless ``target`` is a LayerNorm; for test suites.

    Args:
        target: as :func:`verify` takes it, and the other arguments.
        quick: take the short catalogue.
        strict: fail for remarks too.
        dtypes: of x, by name.
        directions: passes to try.
        device: device kind.
        eps: the only eps to verify.
        normalized_dims: the only number of trailing axes.
        channels_first: whether axis 1 of x is normalised.
        init: arguments of the target's constructor.

    Raises:
        AssertionError: it is not one.
    """
    from harness.verify.text import verdict_lines

    verdict = verify(
        target,
        quick=quick,
        dtypes=dtypes,
        directions=directions,
        device=device,
        eps=eps,
        normalized_dims=normalized_dims,
        channels_first=channels_first,
        init=init,
    )
    if not verdict.passed or (strict and verdict.remarks):
        raise AssertionError("\n".join(verdict_lines(verdict)))


def as_implementation(target: Target, options: CallOptions | None = None) -> Implementation:
    """Return ``target`` as an implementation.

    Raises:
        implementations.TargetError: it is a text that names nothing.
    """
    if isinstance(target, str):
        return implementations.find(target, options)
    name = getattr(target, "__name__", None) or type(target).__name__
    return implementations.adopt(target, name, options)
