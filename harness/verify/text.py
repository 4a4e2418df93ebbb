"""A verdict in words: for the terminal, and for the message of a failed test."""

from __future__ import annotations

from harness.records import Affine, Status
from harness.records.text import count
from harness.verify.findings import SILENT, Count, Declined, Outcome, Suspect
from harness.verify.result import Verdict
from harness.verify.scope import Scope

__all__ = ["headline", "verdict_lines"]

_SHOWN = 8  # failures of different kinds that a person reads before scrolling
_AFFINES = {
    Affine.BOTH: "weight and bias",
    Affine.WEIGHT: "weight alone",
    Affine.BIAS: "bias alone",
    Affine.NONE: "neither weight nor bias",
}


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return the lines that a person reads, the answer first."""
    lines = [f"{verdict.target}: {headline(verdict)}"]
    if verdict.ended and verdict.is_wrong:
        lines.append(f"  the verification was not finished: it {verdict.ended}")
    if verdict.instead is None:
        lines += [_suspect_line(each) for each in verdict.suspects]
        is_crash = all(each.status is Status.CRASHED for each in verdict.failures)
        if not is_crash and not verdict.suspects:
            lines.append("  no known mistake explains it")
    lines += [f"  contract violation in {each.dtype}: {each.text}" for each in verdict.violations]
    lines += _failure_lines(verdict)
    if verdict.failures and all(each.case.normalized_dims > 1 for each in verdict.failures):
        lines.append("  over the last axis alone no case failed: --normalized-dims 1 verifies that")
    if verdict.reproduce:
        lines += ["  reproduce the smallest with:", f"    {verdict.reproduce}"]
    lines += _scope_lines(verdict)
    lines += _remark_lines(verdict)
    lines += _running_lines(verdict)
    right = [each for each in verdict.grades if each.dtype in verdict.right_dtypes]
    lines += [f"  {each.words}" for each in right]
    lines += _class_lines(verdict)
    lines += _property_lines(verdict)
    lines += _declined_lines(verdict)
    left = f"; {count(verdict.left, 'case')} left when the time was over" if verdict.left else ""
    lines.append(
        f"  {count(verdict.cases, 'case')} in {verdict.wall_s:.1f} s, {verdict.oracle_s:.1f} s "
        f"of it in the exact reference and {verdict.implementation_s:.1f} s in {verdict.target}{left}"
    )
    return lines


def headline(verdict: Verdict) -> str:
    """Return the answer in one sentence, without the name of the target."""
    if verdict.outcome is Outcome.NOT_VERIFIED:
        return _not_verified(verdict)
    if verdict.outcome is Outcome.WRONG:
        return _wrong(verdict)
    sums = verdict.running_sums
    bound = verdict.algorithm if sums is None else f"{sums.algorithm} by running sums"
    outside = (
        f", {verdict.out_of_guarantee} outside its guarantee" if verdict.out_of_guarantee else ""
    )
    return (
        f"{_layer_norm(verdict)}. {verdict.ok} of {count(verdict.cases, 'case')} within the "
        f"error bound of {bound}{outside}{_untold(verdict)}"
    )


def _layer_norm(verdict: Verdict) -> str:
    """Name what it is: the axes, its eps if that is fixed, and the dtypes."""
    scope = verdict.scope
    axes = "" if scope is None else f" over {scope.axes}"
    eps = "" if scope is None or scope.eps is None else f", with an eps of {scope.eps:g}"
    first = {Affine.BOTH: "", Affine.WEIGHT: " without bias", Affine.BIAS: " without weight"}
    affine = "" if scope is None else first.get(scope.affines[0], " without weight and bias")
    return f"a LayerNorm{affine}{axes}{eps}, in {', '.join(verdict.right_dtypes)}"


def _wrong(verdict: Verdict) -> str:
    if verdict.instead is not None:
        name = verdict.instead.name
        article = "an" if name[0] in "AEIOUR" and not name.startswith("removal") else "a"
        article = "" if name[0].islower() else f"{article} "
        has_axes = name.startswith(("LayerNorm with", "RMSNorm", "removal", "division"))
        axes = f" over {verdict.instead.axes}" if has_axes else ""
        what = f"NOT a LayerNorm: it computes {article}{name}{axes}"
    else:
        right = verdict.right_dtypes
        where = f" in {', '.join(verdict.wrong_dtypes)}" if right else ""
        also = f" ({_layer_norm(verdict)})" if right else ""
        what = f"NOT a LayerNorm{where}{also}"
    parts = []
    if verdict.failed:
        parts.append(
            f"{verdict.failed} of {count(verdict.cases, 'case')} failed{_where(verdict.counts)}"
        )
    if verdict.violations:
        texts = {each.text for each in verdict.violations}
        parts.append(f"{count(len(texts), 'contract check')} failed")
        if not verdict.failed:
            parts.append(f"each of {count(verdict.cases, 'single call')} is right")
    return f"{what}. {'; '.join(parts)}"


def _not_verified(verdict: Verdict) -> str:
    if verdict.ended:
        right = f"{verdict.ok + verdict.out_of_guarantee} of {count(verdict.cases, 'case')}"
        return f"NOT verified: it {verdict.ended}. So far {right} were right"
    declined = sum(each.declined for each in verdict.extents)
    if verdict.scope is None and verdict.declined:
        return f"NOT verified: {verdict.declined[0].reason}"
    if not verdict.cases and not declined:
        return "NOT verified. No case was tried"
    asked = count(verdict.cases + declined, "case")
    return f"NOT verified. It answers {verdict.cases} of {asked}, too few to tell"


def _untold(verdict: Verdict) -> str:
    """Return in which dtypes too little was answered."""
    untold = [
        f"{each.dtype} ({each.answered} of {each.answered + each.declined} answered)"
        for each in verdict.extents
        if not each.is_verified
    ]
    return f"; not verified in {', '.join(untold)}" if untold else ""


def _where(counts: tuple[Count, ...]) -> str:
    """Which dtypes the failures are in, if that is not every one alike."""
    if len({each.failed for each in counts}) < 2:
        return ""
    failing = [each for each in counts if each.failed]
    if len(failing) == 1:
        return f", all of {failing[0].dtype}"
    return f" ({', '.join(f'{each.failed} of {each.dtype}' for each in failing)})"


def _scope_lines(verdict: Verdict) -> list[str]:
    """What was verified, and what it declines."""
    scope = verdict.scope
    if scope is None:
        return []
    directions = "forward and backward" if scope.has_gradient else "forward alone"
    affines = ", ".join(_AFFINES[each] for each in scope.affines)
    lines = [f"  scope: {scope.axes}; {directions}; {affines}; {_eps(scope)}"]
    lines += [f"  outside its scope: {each}" for each in scope.reasons]
    return lines


def _eps(scope: Scope) -> str:
    if scope.eps is not None:
        return f"eps always {scope.eps:g}"
    default = "" if scope.default_eps is None else f", {scope.default_eps:g} by default"
    return f"any eps{default}"


def _remark_lines(verdict: Verdict) -> list[str]:
    lines = []
    for each in verdict.remarks:
        word = "WARNING" if each.kind in SILENT else "remark"
        where = f" ({', '.join(each.dtypes)})" if each.dtypes else ""
        lines.append(f"  {word}: it {each.text}{where}")
    return lines


def _class_lines(verdict: Verdict) -> list[str]:
    """The strictest class whose bound it keeps, with the dtypes in which it does."""
    met: dict[str, list[str]] = {}
    for each in verdict.grades:
        if each.dtype in verdict.right_dtypes and each.meets is not None:
            met.setdefault(each.meets, []).append(each.dtype)
    classes = [f"{name} in {', '.join(dtypes)}" for name, dtypes in met.items()]
    return [f"  strictest class whose bound it keeps: {'; '.join(classes)}"] if classes else []


def _running_lines(verdict: Verdict) -> list[str]:
    """What was taken for running sums, and how to have it held to just that."""
    found = verdict.running_sums
    if found is None:
        return []
    lose = "loses" if found.cases == 1 else "lose"
    return [
        f"  in {', '.join(found.dtypes)}: {count(found.cases, 'case')} {lose} more than "
        f"PyTorch's own may, and no more than running sums may; the furthest is {found.worst}",
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
    """One line per reason, of what was not tried or declined with that word."""
    by_reason: dict[str, list[Declined]] = {}
    for each in verdict.declined:
        if not each.raised and each.cases:
            by_reason.setdefault(each.reason, []).append(each)
    lines = []
    for reason, declined in list(by_reason.items())[:_SHOWN]:
        more = f" and {len(declined) - 1} more" if len(declined) > 1 else ""
        cases = count(sum(each.cases for each in declined), "case")
        verb = "declines" if declined[0].by_target else "leaves out"
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
