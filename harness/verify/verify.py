"""Verify a target: is it a LayerNorm, within which scope, how accurate, and if not, why not?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import implementations
from harness.records import Case, Direction, Status
from harness.run.integrity import TamperingError, Trusted
from harness.verify.cases.plan import DEFAULT, QUICKEST
from harness.verify.find_scope import find_scope
from harness.verify.identify import meaning_of, what_is_raised
from harness.verify.result import Verdict
from harness.verify.scope import within_scope
from harness.verify.time_budget import TimeBudget
from harness.verify.trial import Trial, try_case
from harness.verify.verification import Verification, run_verification
from implementations import CallOptions
from implementations.contract import Implementation, UnsupportedError

__all__ = ["DTYPES", "assert_layer_norm", "verify", "verify_case"]

DTYPES = ("float32", "bfloat16", "float16", "float64")

Target = str | Implementation | Callable[..., Any]


def verify(
    target: Target,
    *,
    quick: bool = False,
    strength: int | None = None,
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
    trusted: Trusted | None = None,
    on_case: Callable[[Case], None] = lambda case: None,
    on_progress: Callable[[Callable[[], Verdict]], None] = lambda verdict: None,
) -> Verdict:
    """Verify one LayerNorm within its scope: on a covering array, on stories, by contract checks.

    Args:
        target: an implementation, a function, a ``torch.nn.Module`` class or instance, a
            ``torch.autograd.Function`` class, or what :func:`implementations.find` finds. A
            target that declares nothing is held to the bound of PyTorch's own kernel or, if running
            sums explain every result outside that bound, to the bound of running sums.
        quick: try every combination of two conditions (seconds) instead of three (minutes).
        strength: the number of conditions of which every combination is tried, 2 to 4; by default
            that of ``quick``.
        dtypes: of x, by name.
        directions: passes to try; without a backward one, gradients are not checked.
        device: device kind.
        eps: the only eps to verify, for a target whose eps is fixed and cannot be measured.
        normalized_dims: the only number of trailing axes to normalise over.
        channels_first: whether x is (batch, channels, ...) and the channels are normalised.
        init: arguments of the target's constructor, or of the function, by name.
        fail_fast: stop at the first failure, without diagnosis and grades.
        time_budget_s: seconds after which no case is begun; every group's first case comes first.
        huge_bytes: memory for also trying more than 2^31 elements, which takes 10 GiB for a
            forward and 20 GiB for a backward; None leaves them out.
        crashed: cases that ended an earlier process, and how; they count as failed and are not
            tried again.
        trusted: what measures and judges the target, taken before anything of it was imported; None
            to take it now.
        on_case: called with each case before it is tried.
        on_progress: called after each case with a function that returns the verdict so far.

    Raises:
        implementations.TargetError: ``target`` is a string that names nothing.
    """
    options = CallOptions(
        eps=eps, normalized_dims=normalized_dims, channels_first=channels_first, init=init or {}
    )
    trusted = trusted or Trusted()
    tampering = None
    try:
        implementation = trusted.imported(target, partial(as_implementation, options=options))
    except TamperingError as error:
        tampering, implementation = str(error), as_implementation(target, options)
    forward_only = implementation.forward_only or not {*directions} - {Direction.FORWARD}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    run = Verification(
        implementation=replace(implementation, forward_only=forward_only),
        handle=repr(target) if isinstance(target, str) else implementation.name,
        strength=strength or (QUICKEST if quick else DEFAULT),
        dtypes=tuple(dtypes),
        device=device,
        options=options,
        fail_fast=fail_fast,
        budget=TimeBudget(time_budget_s),
        huge_bytes=huge_bytes,
        crashed=crashed or {},
        trusted=trusted,
        tampering=tampering,
        on_case=on_case,
        on_progress=on_progress,
    )
    try:
        return run_verification(run)
    finally:
        torch.set_num_threads(before)


def verify_case(
    target: Target,
    shape: tuple[int, ...],
    *,
    options: CallOptions | None = None,
    **axes: Any,
) -> Trial:
    """Try one case, given as fields of :class:`harness.records.Case`, or as strings.

    Args:
        target: as :func:`verify` takes it.
        shape: of x; its last axes are normalised.
        options: how the target is to be called.
        **axes: other fields of the case.

    Raises:
        implementations.TargetError: ``target`` is a string that names nothing.
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
    except UnsupportedError as error:  # every call raises
        return Trial(case=case, status=Status.UNSUPPORTED, reason=str(error))
    return try_case(within_scope(implementation, scope), case, measure=True)


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
    """Raise unless ``target`` is a LayerNorm, naming the mistake; for test suites.

    Args:
        target: as :func:`verify` takes it, and the other arguments.
        quick: try every combination of two conditions instead of three.
        strict: raise for remarks too.
        dtypes: of x, by name.
        directions: passes to try.
        device: device kind.
        eps: the only eps to verify.
        normalized_dims: the only number of trailing axes.
        channels_first: whether axis 1 of x is normalised.
        init: arguments of the target's constructor.

    Raises:
        AssertionError: it is not a LayerNorm; the message holds the verdict.
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
        implementations.TargetError: ``target`` is a string that names nothing.
    """
    if isinstance(target, str):
        return implementations.find(target, options)
    name = getattr(target, "__name__", None) or type(target).__name__
    return implementations.adopt(target, name, options)
