"""How often does `check` fail unchanged cases whose speed differs from hour to hour?

Simulated: the logarithm of a ratio is normal between hours and between processes. The rule is that
of the harness. Prints a table.
"""

from __future__ import annotations

from itertools import product

import click
import numpy as np

from harness.records import Case
from harness.regression import (
    AGAINST_BASELINE,
    ChangeKind,
    Shift,
    judge,
    ratio_between,
    spread_of,
    with_recordings,
)

CASES = 20_000
PROCESSES = 10
CONFIRMING = 5
BETWEEN_HOURS = (0.003, 0.01, 0.02, 0.03)
BETWEEN_PROCESSES = (0.005, 0.02)
SLOWER = (1.0, 1.05, 1.1, 1.2)


def failed(recordings: int, hours: float, processes: float, factor: float) -> float:
    """Return the share of cases that `check` calls slower."""
    draw = np.random.default_rng(1).standard_normal
    levels = hours * draw((CASES, recordings, 1))
    before = levels + processes * draw((CASES, recordings, PROCESSES))
    now = np.log(factor) + hours * draw((CASES, 1)) + processes * draw((CASES, 1 + CONFIRMING))
    shifts, fresh = [], []
    for index, (old, new) in enumerate(zip(np.exp(before), np.exp(now), strict=True)):
        values, (first, *rest) = tuple(old.ravel().tolist()), new.tolist()
        shifts.append(
            Shift(
                case=Case(implementation="two_pass", shape=(1 + index, 8)),
                limits=AGAINST_BASELINE,
                ratio=ratio_between(values, [first]),
                spread=spread_of(values),
                before=values,
                reference="native",
            )
        )
        fresh.append(rest)
    judged = map(judge, with_recordings(shifts), fresh)
    return sum(change.kind is ChangeKind.SLOWER for change in judged) / CASES


def main() -> None:
    """Print the table."""
    columns = ["unchanged", *(f"{factor - 1:.0%} slower" for factor in SLOWER[1:])]
    click.echo(f"| recordings | between hours | between processes | {' | '.join(columns)} |")
    click.echo("|---" * (3 + len(columns)) + "|")
    for recordings, hours, processes in product((1, 3), BETWEEN_HOURS, BETWEEN_PROCESSES):
        shares = (failed(recordings, hours, processes, factor) for factor in SLOWER)
        cells = [f"{hours:.1%}", f"{processes:.1%}", *(f"{share:.2%}" for share in shares)]
        click.echo(f"| {recordings} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
