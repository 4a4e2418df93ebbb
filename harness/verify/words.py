"""A verdict in words: for the terminal, and for the message of a failed test."""

from __future__ import annotations

from harness.verify.diagnosis import Suspect
from harness.verify.findings import Count, Declined, Verdict

__all__ = ["verdict_lines"]

_SHOWN = 8  # ours: failures of different kinds that a person reads before scrolling


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return the lines that a person reads, the answer first."""
    lines = [_headline(verdict), *_running_lines(verdict)]
    lines += [_suspect_line(each) for each in verdict.suspects]
    if verdict.failures and not verdict.suspects:
        lines.append("  no known mistake explains it")
    lines += [f"  broken promise: {each}" for each in verdict.broken_promises]
    lines += _failure_lines(verdict)
    if verdict.reproduce:
        lines += ["  reproduce the smallest with:", f"    {verdict.reproduce}"]
    lines += [f"  {each.words}" for each in verdict.grades]
    lines += _class_lines(verdict)
    lines += _property_lines(verdict)
    lines += _declined_lines(verdict)
    lines.append(
        f"  {verdict.cases} cases in {verdict.wall_s:.1f} s, {verdict.oracle_s:.1f} s of it in the "
        f"exact reference and {verdict.guest_s:.1f} s in {verdict.target}"
    )
    return lines


def _headline(verdict: Verdict) -> str:
    if verdict.passed:
        bound, said = verdict.algorithm, "a LayerNorm"
        if verdict.running_sums is not None:
            bound = f"{verdict.running_sums.algorithm} by running sums"
            said = f"{said}, as accurate as plain running sums: less than PyTorch's own"
        return (
            f"{verdict.target}: {said}. {verdict.ok} of {verdict.cases} cases within the bound "
            f"of {bound}, {verdict.out_of_guarantee} beyond what it promises"
            f"{_but_in(verdict)}"
        )
    if not verdict.cases and not verdict.broken_promises:
        return f"{verdict.target}: nothing could be verified, {_no_answer(verdict)}"
    if not verdict.is_wrong:
        declined = sum(each.declined for each in verdict.extents)
        return (
            f"{verdict.target}: NOT verified. It answers {verdict.cases} of "
            f"{verdict.cases + declined} cases, too few to tell"
        )
    return (
        f"{verdict.target}: NOT a LayerNorm. {verdict.failed} of {verdict.cases} cases failed"
        f"{_where(verdict.counts)}, {len(verdict.broken_promises)} promises broken"
    )


def _but_in(verdict: Verdict) -> str:
    """Return in which dtypes too little was answered."""
    untold = [
        f"{each.dtype} ({each.answered} of {each.answered + each.declined} answered)"
        for each in verdict.extents
        if not each.is_verified
    ]
    return f"; not verified in {', '.join(untold)}" if untold else ""


def _no_answer(verdict: Verdict) -> str:
    raising = [each for each in verdict.declined if each.raised]
    if not raising:
        return "it declines every case"
    if len(raising) < len(verdict.declined):
        return f"it raises or declines in every case, such as {raising[0].reason}"
    return f"it raises in every case: {raising[0].reason}"


def _class_lines(verdict: Verdict) -> list[str]:
    """The strictest class whose bound it keeps, with the dtypes in which it does."""
    met: dict[str, list[str]] = {}
    for each in verdict.grades:
        met.setdefault(each.meets or "none", []).append(each.dtype)
    classes = [f"{name} in {', '.join(dtypes)}" for name, dtypes in met.items()]
    return [f"  strictest class whose bound it keeps: {'; '.join(classes)}"] if classes else []


def _where(counts: tuple[Count, ...]) -> str:
    """Which dtypes the failures are in, if that is not every one alike."""
    if len({each.failed for each in counts}) < 2:
        return ""
    failing = [each for each in counts if each.failed]
    if len(failing) == 1:
        return f", all of {failing[0].dtype}"
    return f" ({', '.join(f'{each.failed} of {each.dtype}' for each in failing)})"


def _running_lines(verdict: Verdict) -> list[str]:
    """What was taken for running sums, and how to have it held to just that."""
    found = verdict.running_sums
    if found is None:
        return []
    cases = "1 case loses" if found.cases == 1 else f"{found.cases} cases lose"
    return [
        f"  in {', '.join(found.dtypes)}: {cases} more than PyTorch's own may, and no more than "
        f"running sums may; the furthest is {found.worst}",
        "  if its sums are running ones, declare it: from implementations import Algorithm, "
        "Reduction, implementation;",
        f"    @implementation(source=..., algorithm=Algorithm.{found.algorithm.upper()}, "
        "reduction=Reduction.SEQUENTIAL)",
    ]


def _suspect_line(suspect: Suspect) -> str:
    where = f"in {', '.join(suspect.dtypes)}"
    if len(suspect.outputs) < 4:  # it explains a part of what is wrong
        where = f"{', '.join(suspect.outputs)} {where}"
    return f"  likely mistake ({where}): it {suspect.mistake}"


def _declined_lines(verdict: Verdict) -> list[str]:
    """One line a reason."""
    by_reason: dict[str, list[Declined]] = {}
    for each in verdict.declined:
        by_reason.setdefault(each.reason, []).append(each)
    lines = []
    for reason, declined in list(by_reason.items())[:_SHOWN]:
        more = f" and {len(declined) - 1} more" if len(declined) > 1 else ""
        count = sum(each.cases for each in declined)
        cases = "1 case" if count == 1 else f"{count} cases"
        verb = "declines" if declined[0].by_target else "leaves out"
        verb = "raises in" if declined[0].raised else verb
        lines.append(f"  {verb} {cases} ({declined[0].what}{more}): {reason}")
    return lines


def _failure_lines(verdict: Verdict) -> list[str]:
    """One failure of each kind: the smallest of each group of cases and dtype."""
    kinds = {(each.catches, each.case.dtype): each for each in reversed(verdict.failures)}
    shown = list(reversed(kinds.values()))[:_SHOWN]
    lines = [f"  {each.status}: {each.case.id}: {each.reason}" for each in shown]
    if verdict.failed > len(shown):
        lines.append(f"  and {verdict.failed - len(shown)} more")
    return lines


def _property_lines(verdict: Verdict) -> list[str]:
    lines = []
    for is_identity, kept, broken in (
        (False, "bit by bit", "not"),
        (True, "within the bound", "broken identity:"),
    ):
        looked_at = [each for each in verdict.properties if each.is_identity is is_identity]
        by_name: dict[str, list[str]] = {}
        for each in looked_at:
            if each.holds is False:
                by_name.setdefault(each.name.replace("_", " "), []).append(each.dtype)
        lines += [f"  {broken} {name} in {', '.join(dtypes)}" for name, dtypes in by_name.items()]
        if looked_at and not by_name:
            names = dict.fromkeys(each.name.replace("_", " ") for each in looked_at)
            lines.append(f"  {kept}: {', '.join(names)}")
    return lines
