"""Is this a LayerNorm, how good a one, and if it is none, which mistake is it?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

import implementations
from harness.records import Case, Direction, Status
from harness.verify.answers import is_same_answer
from harness.verify.catalogue import FULL, QUICK, Group, cases_of
from harness.verify.diagnosis import diagnose
from harness.verify.errors import Outputs
from harness.verify.findings import Declined, Verdict
from harness.verify.tally import Tally
from harness.verify.trial import Trial, first_case, outputs_of, try_case
from harness.verify.undeclared import running_sums
from implementations.contract import Implementation

__all__ = ["DTYPES", "assert_layer_norm", "verify", "verify_case"]

DTYPES = ("float32", "bfloat16", "float16", "float64")
_MOST_S = 30.0  # ours: for one case, where the whole catalogue takes a slow target as long
_REFUSED = {Status.ERROR, Status.UNSUPPORTED}
_MISTAKES = {
    "AttributeError",
    "IndexError",
    "KeyError",
    "NameError",
    "OverflowError",
    "RecursionError",
    "UnboundLocalError",
    "ZeroDivisionError",
}


def verify(
    target: str | Implementation | Callable[..., Any],
    *,
    quick: bool = False,
    dtypes: Sequence[str] = DTYPES,
    directions: Sequence[Direction] = tuple(Direction),
    device: str = "cpu",
    fail_fast: bool = False,
    huge_bytes: int | None = None,
    on_case: Callable[[Case], None] = lambda case: None,
) -> Verdict:
    """Verify one LayerNorm on the whole catalogue.

    Args:
        target: an implementation, a function or ``nn.Module`` class of the contract's signature, or
            what :func:`implementations.find` finds. What declares nothing is held to what
            PyTorch's own kernel keeps or, if running sums explain all that is beyond, to those.
        quick: take the short catalogue (seconds) instead of the full one (minutes).
        dtypes: of x, by name.
        directions: passes to try; without a backward one, gradients are not looked at.
        device: device kind.
        fail_fast: stop at the first failure: it says whether, not which mistake or how good.
        huge_bytes: also try more elements than 31 bits count, where there is so much memory: it
            takes 10 GiB for a forward, 20 for a backward; None leaves them out.
        on_case: is told of each case before it is tried.

    Raises:
        implementations.TargetError: ``target`` is a text that names nothing.
    """
    implementation = as_implementation(target)
    forward_only = implementation.forward_only or not {*directions} - {Direction.FORWARD}
    implementation = replace(implementation, forward_only=forward_only)
    began = perf_counter()
    tally = Tally(claims=running_sums(implementation))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for dtype in dtypes:
            on_case(first_case(implementation.name, dtype, device))
        start = {each: _first_answer(implementation, each, device) for each in dtypes}
        for dtype in dtypes:
            for group in QUICK if quick else FULL:
                if fail_fast and tally.is_wrong:
                    break
                asked = cases_of(group, implementation.name, dtype, device, forward_only)
                cases = [each for each in asked if each not in tally.tried]
                tally.tried.update(cases)
                _try_group(implementation, group, dtype, cases, tally, on_case)
            tally.judge_mistakes(dtype)
        taken_for = tally.settle()
        looks_further = not (fail_fast and tally.failed)
        for dtype in tally.answered if looks_further else ():
            tally.keep_promises(implementation, dtype, device, most=1 if fail_fast else None)
            again = _first_answer(implementation, dtype, device)
            case = first_case(implementation.name, dtype, device)
            held = tally.held.get(dtype, implementation)
            if not is_same_answer(held, case, start[dtype], again):
                tally.promises.append(f"{dtype}: {_CHANGED}")
            if not fail_fast:
                tally.inspect(implementation, dtype, device)
        if looks_further and huge_bytes is not None and tally.answered:
            tally.ask_for_huge(implementation, device, huge_bytes)
        suspects = diagnose(implementation, tally.failed) if not fail_fast else ()
    finally:
        torch.set_num_threads(before)
    return Verdict(
        target=implementation.name,
        handle=repr(target) if isinstance(target, str) else implementation.name,
        algorithm=implementation.algorithm,
        ok=tally.ok,
        out_of_guarantee=tally.out_of_guarantee,
        failed=len(tally.failed),
        counts=tally.counts(),
        running_sums=taken_for,
        failures=tally.failures(),
        broken_promises=tuple(tally.promises),
        declined=tuple(tally.declined),
        extents=tally.extents(dtypes),
        suspects=suspects,
        grades=tuple(tally.grades),
        properties=tuple(tally.properties),
        wall_s=perf_counter() - began,
        oracle_s=tally.oracle_s,
        guest_s=tally.guest_s,
    )


def verify_case(
    target: str | Implementation | Callable[..., Any], shape: tuple[int, ...], **axes: Any
) -> Trial:
    """Try one case, given as the fields of :class:`harness.records.Case`; plain texts will do."""
    implementation = as_implementation(target)
    if "direction" in axes:
        axes["direction"] = Direction(axes["direction"])
    return try_case(implementation, Case(implementation=implementation.name, shape=shape, **axes))


def assert_layer_norm(
    target: str | Implementation | Callable[..., Any],
    *,
    quick: bool = True,
    dtypes: Sequence[str] = DTYPES,
    directions: Sequence[Direction] = tuple(Direction),
    device: str = "cpu",
) -> None:
    """Fail, saying which mistake it is, unless ``target`` is a LayerNorm; for test suites.

    Raises:
        AssertionError: it is not one.
    """
    from harness.verify.words import verdict_lines

    verdict = verify(target, quick=quick, dtypes=dtypes, directions=directions, device=device)
    if not verdict.passed:
        raise AssertionError("\n".join(verdict_lines(verdict)))


def as_implementation(target: str | Implementation | Callable[..., Any]) -> Implementation:
    """Return ``target`` as an implementation.

    Raises:
        implementations.TargetError: it is a text that names nothing.
    """
    if isinstance(target, str):
        return implementations.find(target)
    return implementations.adopt(target, getattr(target, "__name__", repr(target)))


_CHANGED = "what was asked first is answered differently at the end, after all the other calls"


def _first_answer(implementation: Implementation, dtype: str, device: str) -> Outputs | None:
    """y of the first case of all, which is asked again at the end."""
    outputs = outputs_of(implementation, first_case(implementation.name, dtype, device))
    return None if outputs is None else Outputs(y=outputs.y.clone())


def _try_group(
    implementation: Implementation,
    group: Group,
    dtype: str,
    cases: Iterable[Case],
    tally: Tally,
    on_case: Callable[[Case], None],
) -> None:
    """Try the cases of a group; if none is answered, the group is declined, not failed."""
    trials = []
    for case in cases:
        if tally.predicted_s(case) > _MOST_S:
            tally.time_again(implementation)
        if (seconds := tally.predicted_s(case)) > _MOST_S:
            reason = f"it would take about {seconds:.0f} s"
            tally.declined.append(Declined(what=case.id, cases=1, reason=reason, by_target=False))
            continue
        on_case(case)
        trial = try_case(implementation, case, tally.claims_left(dtype))
        # a distribution that the dtype cannot hold is nobody's limit
        if trial.status is not Status.UNSUPPORTED or not _unrepresentable(trial):
            trials.append(trial)
            tally.time(trial)
    refused = [each for each in trials if each.status in _REFUSED]
    if trials and len(refused) == len(trials):
        if any(map(_is_mistake, trials)):
            tally.mistakes.append((group, trials))
        else:
            tally.refuse(dtype, f"{dtype}: {group.catches}", refused)
        return
    for each in trials:
        if each.status is Status.UNSUPPORTED:
            tally.refuse(dtype, each.case.id, [each])
        else:
            tally.add(each, group)


def _is_mistake(trial: Trial) -> bool:
    """Whether what was raised is no way to decline a call."""
    return trial.status is Status.ERROR and trial.reason.partition(":")[0] in _MISTAKES


def _unrepresentable(trial: Trial) -> bool:
    return "beyond the largest" in trial.reason
