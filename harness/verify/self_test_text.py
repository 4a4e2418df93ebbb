"""The words of the self-test, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from harness.records.text import count
from harness.verify.self_test_result import Fate, RedTeam, SelfTest

__all__ = ["self_test_lines"]

_MOST_MISSED = 8  # that a person reads; --json has all


def self_test_lines(result: SelfTest) -> Iterator[str]:
    """Yield how many mistakes the self-test found per dtype, and which it missed."""
    yield "mistakes found:"
    for dtype in dict.fromkeys(mutant.dtype for mutant in result.mutants):
        found = [mutant.is_found for mutant in result.mutants if mutant.dtype == dtype]
        yield f"  {dtype:<10}{sum(found):>4} of {len(found)}"
    missed = [f"{each.name} in {each.dtype}" for each in result.mutants if not each.is_found]
    yield f"mistakes missed: {', '.join(missed) or 'none'}"
    yield f"right implementations rejected: {', '.join(result.rejected) or 'none'}"
    if result.red_team is not None:
        yield from _red_team_lines(result.red_team)


def _red_team_lines(result: RedTeam) -> Iterator[str]:
    """Yield how many random compound mutants were found, by the number of conditions."""
    yield "mistakes behind a random trigger found, by the number of conditions:"
    for order in result.orders:
        fates, share = result.fates(order), result.share(order)
        visible = fates[Fate.FOUND] + fates[Fate.MISSED]
        percent = "" if share is None else f", {share:.1%}"
        yield (
            f"  {count(order, 'condition'):<13}{fates[Fate.FOUND]:>4} of {visible}{percent}; "
            f"{fates[Fate.INVISIBLE]} more show nowhere"
        )
    missed = result.missed
    for each in missed[:_MOST_MISSED]:
        yield f"  missed: {each.text}; {each.shown_by} shows it"
    if len(missed) > _MOST_MISSED:
        yield f"  and {len(missed) - _MOST_MISSED} more"
    yield from (f"a right LayerNorm fails {each}" for each in result.false_alarms)
