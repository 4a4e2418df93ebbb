"""Verify a target: is it a LayerNorm, within which scope, how accurate, and if not, why not?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

import implementations
from harness.numerics.error_measurement import measure_errors
from harness.records import Case, Direction, Status
from harness.run.attempt import Judged, attempt
from harness.run.integrity import TamperingError, Trusted
from harness.verify.find_scope import find_scope
from harness.verify.result import Verdict, VerifyOptions
from harness.verify.scope import within_scope
from harness.verify.verification import Verification
from implementations import CallOptions
from implementations.contract import Implementation, UnsupportedError

__all__ = ["Target", "assert_layer_norm", "verify", "verify_case", "verify_target"]

Target = str | Implementation | Callable[..., Any]

Options = ParamSpec("Options")
Returned = TypeVar("Returned")


def _by_keyword(
    make: Callable[Options, VerifyOptions],
) -> Callable[
    [Callable[[Target, VerifyOptions], Returned]], Callable[Concatenate[Target, Options], Returned]
]:
    """Let a function of a target and options take the options as keyword arguments."""

    def decorate(
        function: Callable[[Target, VerifyOptions], Returned],
    ) -> Callable[Concatenate[Target, Options], Returned]:
        def called(target: Target, /, *none: Options.args, **options: Options.kwargs) -> Returned:
            return function(target, make(*none, **options))

        update_wrapper(called, function)
        own = inspect.signature(function).parameters["target"]
        keywords = inspect.signature(make).parameters.values()
        vars(called)["__signature__"] = inspect.Signature([own, *keywords])
        return called

    return decorate


@_by_keyword(VerifyOptions)
def verify(target: Target, options: VerifyOptions) -> Verdict:
    """Verify one LayerNorm within its scope: on a covering array, on stories, by contract checks.

    Args:
        target: an implementation, a function, a ``torch.nn.Module`` class or instance, a
            ``torch.autograd.Function`` class, or what :func:`implementations.find` finds. A
            target that declares nothing is held to the bound of PyTorch's own kernel or, if running
            sums explain every result outside that bound, to the bound of running sums.
        options: keyword arguments, the fields of :class:`harness.verify.result.VerifyOptions`.

    Raises:
        implementations.TargetError: ``target`` is a string that names nothing.
    """
    return verify_target(target, options)


@_by_keyword(VerifyOptions)
def assert_layer_norm(target: Target, options: VerifyOptions) -> None:
    """Raise unless ``target`` is a LayerNorm, naming the mistake; for test suites.

    Args:
        target: as :func:`verify` takes it.
        options: keyword arguments, as :func:`verify` takes them.

    Raises:
        AssertionError: it is not a LayerNorm; the message holds the verdict.
    """
    from harness.verify.text import verdict_lines

    verdict = verify_target(target, options)
    if not verdict.passed or (options.strict and verdict.remarks):
        raise AssertionError("\n".join(verdict_lines(verdict)))


def verify_target(
    target: Target,
    options: VerifyOptions,
    *,
    trusted: Trusted | None = None,
    crashed: Mapping[Case, str] | None = None,
    on_case: Callable[[Case], None] = lambda case: None,
    on_progress: Callable[[Callable[[], Verdict]], None] = lambda verdict: None,
) -> Verdict:
    """Verify a target, and say how far that is.

    Args:
        target: as :func:`verify` takes it.
        options: what to verify.
        trusted: what measures and judges the target, taken before anything of it was imported; None
            to take it now.
        crashed: cases that ended an earlier process, and how; they count as failed and are not
            tried again.
        on_case: called with each case before it is tried.
        on_progress: called after each case with a function that returns the verdict so far.

    Raises:
        implementations.TargetError: ``target`` is a string that names nothing.
    """
    trusted = trusted or Trusted()
    tampering = None
    try:
        find = partial(as_implementation, options=options.call)
        implementation = trusted.imported(target, find)
    except TamperingError as error:
        tampering, implementation = str(error), as_implementation(target, options.call)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Verification(
            implementation=implementation,
            handle=repr(target) if isinstance(target, str) else implementation.name,
            options=options,
            trusted=trusted,
            crashed=crashed or {},
            on_case=on_case,
            on_progress=on_progress,
        ).run(tampering)
    finally:
        torch.set_num_threads(before)


def verify_case(
    target: Target,
    shape: tuple[int, ...],
    *,
    options: CallOptions | None = None,
    **axes: Any,
) -> Judged:
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
        unjudged = partial(attempt, implementation, is_judged=False)
        scope, *_ = find_scope(implementation, (case.dtype,), case.device, options, unjudged)
    except UnsupportedError as error:  # every call raises
        return Judged(case=case, status=Status.UNSUPPORTED, reason=str(error))
    judged = attempt(within_scope(implementation, scope), case, measure=measure_errors)
    return replace(judged, outputs=None, function=None)


def as_implementation(target: Target, options: CallOptions | None = None) -> Implementation:
    """Return ``target`` as an implementation.

    Raises:
        implementations.TargetError: ``target`` is a string that names nothing.
    """
    if isinstance(target, str):
        return implementations.find(target, options)
    name = getattr(target, "__name__", None) or type(target).__name__
    return implementations.adopt(target, name, options)
