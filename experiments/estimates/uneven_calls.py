"""Are calls found that do the work of others, and only those?

    python experiments/estimates/uneven_calls.py     prints the tables
    ... --report                                     prints the tables of the stored rows

Simulated over the recorded samples of right implementations and of ``native``, timed in turn.
``unchanged`` counts how often they are called uneven, as recorded and with disturbances of both
arms. ``paying`` lets one call in N take longer, so that all together take a given multiple of the
fast calls, and compares the reported ratio with the true one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from simulated import command, table

from harness.measure.latency import DOUBTFUL_FACTOR
from harness.measure.sample_statistics import epoch_values, estimate, ratios, unevenness
from harness.records import Arm, ArmRole, Budget, Latency
from harness.regression import UNEVEN_IN_TURN_RATIO as UNEVEN_TO_BASE
from harness.store import read

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published" / "uneven_calls.parquet"
RECORDED = [
    ROOT / "results" / "published" / f"{name}.parquet" for name in ("cpu_recentred", "peers")
]
SEED = 1
REPEATS = 5  # of each measurement, with other disturbances
PAYS_FOR = (2, 4, 16, 64)
SLOWER = (1.2, 1.5, 2.0, 4.0)
CALLS_PER_SAMPLE = (1, 8)  # of a long and of a short call
UNTIMED = (2, 5)  # calls between two epochs, at least and below; they shift the pattern

Samples = list[NDArray[np.float64]]
"""The samples of each epoch of one arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was found under one condition."""

    question: str
    """"unchanged" or "paying"."""
    condition: str
    measurements: int
    found: int
    """Measurements that were called uneven."""
    pays_for: int | None = None
    """One call in so many takes longer."""
    slower: float | None = None
    """The true time over that of the fast calls."""
    calls_per_sample: int | None = None
    quantile_ratio: float | None = None
    """The median of reported over true, if the low quantile were always reported."""
    reported_ratio: float | None = None
    """The median of reported over true."""
    least_ratio: float | None = None
    """The 5 % quantile of reported over true."""


def measurements() -> Iterator[tuple[Samples, Samples]]:
    """Yield the samples of subject and reference of each process of each recorded case.

    The epochs are repeated as often as a doubtful measurement may take.
    """
    for path in RECORDED:
        for record in read(path).records:
            for latency in (record.latency, record.cold):
                if latency is not None and latency.reference is not None:
                    for subject, reference in _processes(latency):
                        if max(map(len, subject)) == 1:
                            raise SystemExit(f"{path} has one value per epoch, and no calls")
                        yield subject * DOUBTFUL_FACTOR, reference * DOUBTFUL_FACTOR


def _processes(latency: Latency) -> Iterator[tuple[Samples, Samples]]:
    arms = {arm.role: arm for arm in latency.arms}
    by_epoch = [
        _by_epoch(arms[role], cpu=latency.clock.is_cpu)
        for role in (ArmRole.SUBJECT, ArmRole.REFERENCE)
    ]
    for process in range(latency.processes):
        epochs = [place for place, of in enumerate(latency.process_of_epoch) if of == process]
        subject, reference = ([samples[epoch] for epoch in epochs] for samples in by_epoch)
        yield subject, reference


def _by_epoch(arm: Arm, *, cpu: bool) -> Samples:
    samples, epochs = np.array(arm.cpu_s if cpu else arm.wall_s), np.array(arm.epochs)
    return [samples[epochs == epoch] for epoch in np.unique(epochs)]


def arms_of(subject: Samples, reference: Samples) -> list[Arm]:
    return [
        Arm(
            role=role,
            name=str(role),
            calls_per_sample=1,
            wall_s=tuple(np.concatenate(samples).tolist()),
            cpu_s=None,
            epochs=tuple(epoch for epoch, some in enumerate(samples) for _ in some),
        )
        for role, samples in ((ArmRole.SUBJECT, subject), (ArmRole.REFERENCE, reference))
    ]


def is_uneven(subject: Samples, reference: Samples, least: float) -> tuple[bool, int]:
    """Judge the first epochs, and all of them if the first are not enough, as the sampler does.

    Returns:
        Whether calls are uneven, and the number of epochs that were needed.
    """
    first = len(subject) // DOUBTFUL_FACTOR
    for epochs in (first, len(subject)):
        arms = arms_of(subject[:epochs], reference[:epochs])
        uneven_ratio, is_doubtful = unevenness(arms, cpu=False, least=least)
        if not is_doubtful:
            break
    return uneven_ratio is not None, epochs


def halves(samples: Samples, random: np.random.Generator) -> tuple[Samples, Samples]:
    """Split the samples of each epoch at random: two arms of one function."""
    orders = [random.permutation(len(values)) for values in samples]
    one = [values[order[::2]] for values, order in zip(samples, orders, strict=True)]
    other = [values[order[1::2]] for values, order in zip(samples, orders, strict=True)]
    return one, other


def disturbed(arms: Sequence[Samples], how: str, random: np.random.Generator) -> list[Samples]:
    """Return both arms as neighbours on the machine would disturb them."""
    shares = {"2 % of samples longer, heavy tail": 0.02, "10 % longer, heavy tail": 0.1}
    changed = [[values.copy() for values in samples] for samples in arms]
    for epoch in zip(*changed, strict=True):
        factor = 1 + random.pareto(1.5)
        start, share = random.random(2)
        is_hit = random.random() < 0.5
        for samples in epoch:
            if how in shares:
                hit = random.random(len(samples)) < shares[how]
                samples[hit] += 2 * np.median(samples) * random.pareto(1.1, hit.sum())
            elif how == "half of the epochs slower for a time" and is_hit:
                place = np.arange(len(samples)) / len(samples)
                samples[(place >= start) & (place < start + share)] *= factor
    return changed


DISTURBANCES = (
    "as recorded",
    "2 % of samples longer, heavy tail",
    "10 % longer, heavy tail",
    "half of the epochs slower for a time",
)


def unchanged(
    found: Sequence[tuple[Samples, Samples]], random: np.random.Generator
) -> Iterator[Row]:
    for how in DISTURBANCES:
        repeats = 1 if how == "as recorded" else REPEATS
        against, split = [], []
        for subject, reference in found:
            for _ in range(repeats):
                one, other = disturbed((subject, reference), how, random)
                against.append(is_uneven(one, other, Budget().uneven_ratio)[0])
                if min(map(len, subject)) > 3:  # each half needs a quantile
                    first, second = disturbed(halves(subject, random), how, random)
                    split.append(is_uneven(first, second, UNEVEN_TO_BASE)[0])
        for name, verdicts in (("to native", against), ("to itself", split)):
            yield Row(
                question="unchanged",
                condition=f"{how}, {name}",
                measurements=len(verdicts),
                found=sum(verdicts),
            )


def paying(
    found: Sequence[tuple[Samples, Samples]],
    pays_for: int,
    slower: float,
    calls: int,
    random: np.random.Generator,
) -> Row:
    reported, by_quantile, uneven = [], [], 0
    for subject, reference in found:
        number, paid = int(random.integers(pays_for)), []
        for samples in subject:
            number += int(random.integers(*UNTIMED))
            places = (number + np.arange(len(samples) * calls)) % pays_for == 0
            number += len(samples) * calls
            paying_calls = places.reshape(len(samples), calls).sum(axis=1)
            paid.append(samples * (1 + paying_calls * pays_for * (slower - 1) / calls))
        truth = slower * _ratio(subject, reference, mean=False)
        mean, epochs = is_uneven(paid, reference, Budget().uneven_ratio)
        uneven += mean
        by_quantile.append(_ratio(paid, reference, mean=False) / truth)
        reported.append(_ratio(paid[:epochs], reference[:epochs], mean=mean) / truth)
    return Row(
        question="paying",
        condition="as recorded",
        measurements=len(found),
        found=uneven,
        pays_for=pays_for,
        slower=slower,
        calls_per_sample=calls,
        quantile_ratio=median(by_quantile),
        reported_ratio=median(reported),
        least_ratio=float(np.quantile(reported, 0.05)),
    )


def _ratio(subject: Samples, reference: Samples, *, mean: bool) -> float:
    one, other = (epoch_values(arm, cpu=False, mean=mean) for arm in arms_of(subject, reference))
    return estimate(ratios(one, other), mean=mean).value


def simulate() -> Iterator[Row]:
    """Yield all rows."""
    random = np.random.default_rng(SEED)
    found = list(measurements())
    yield from unchanged(found, random)
    for calls in CALLS_PER_SAMPLE:
        for pays_for in PAYS_FOR:
            for slower in SLOWER:
                yield paying(found, pays_for, slower, calls, random)


def report(rows: Sequence[Row]) -> str:
    """Return all tables as Markdown."""
    lines = [["nothing is uneven", "measurements", "called uneven"], ["---"] * 3]
    lines += [
        [row.condition, str(row.measurements), str(row.found)]
        for row in rows
        if row.question == "unchanged"
    ]
    heads = ("calls per sample", "one call in", "true time / fast calls", "found")
    more = [[*heads, "reported / true", "by the quantile alone"], ["---"] * 6]
    more += [
        [
            str(row.calls_per_sample),
            f"{row.pays_for} pays",
            f"{row.slower:g}",
            f"{row.found / row.measurements:.0%}",
            f"{row.reported_ratio:.2f} ({row.least_ratio:.2f})",
            f"{row.quantile_ratio:.2f}",
        ]
        for row in rows
        if row.question == "paying"
    ]
    return f"{table(lines)}\n\n{table(more)}\n"


if __name__ == "__main__":
    command(__doc__, PUBLISHED, Row, simulate, report)()
