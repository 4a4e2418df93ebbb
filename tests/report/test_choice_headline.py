"""The answer in a sentence or two."""

from collections.abc import Sequence
from math import inf
from pathlib import Path

from factories.choice_records import (
    OTHER_MACHINE,
    SHAPES,
    choices_among,
    failed,
    ran,
    timed,
    with_latency,
)
from factories.golden import assert_golden

from harness.records import Direction, Record, Status
from harness.report.choice import headline_of
from harness.selection import Requirements

NATIVE = timed("native", 1.0)
BACKWARD = {"direction": Direction.BACKWARD}
MANY = [(rows, 8) for rows in range(1, 6)]
SOME = [*timed("quick", 0.5, SHAPES[:1]), *timed("quick", 2.0, SHAPES[1:])]
CRASHED = [failed("native", Status.CRASHED, shape=(rows, 9)) for rows in (1, 2, 3)]
OF_ANOTHER = [
    with_latency(record, reference="another")
    for name, ratio in (("one", 1.0), ("two", 2.0))
    for record in timed(name, ratio)
]
RUNS: dict[str, Sequence[Record]] = {
    "one for all": [*NATIVE, *timed("quick", 0.5)],
    "keep native": [*NATIVE, *timed("slow", 2.0)],
    "one scenario": [ran("native", 1.0), ran("quick", 0.5)],
    "native for some shapes": [*NATIVE, *SOME],
    "by direction": [
        *NATIVE,
        *timed("quick", 0.5),
        *timed("native", 1.0, **BACKWARD),
        *timed("quick", 2.0, **BACKWARD),
    ],
    "native is faster and wrong": [
        *timed("native", 1.0, status=Status.WRONG),
        *timed("exact", 1.25),
    ],
    "nothing is eligible for some": [*NATIVE, *CRASHED],
    "native was not timed": OF_ANOTHER,
    "another for each shape": [
        *timed("native", 1.0, MANY),
        *(ran(f"impl{at}", 0.5, shape=shape) for at, shape in enumerate(MANY)),
    ],
    "two machines": [*NATIVE, *timed("native", 1.0, environment=OTHER_MACHINE.fingerprint)],
}


def test_the_sentences() -> None:
    lines = []
    for title, records in RUNS.items():
        found = choices_among(*records, requirements=Requirements())
        lines += [f"\n{title}", *headline_of(found)]
    accurate = Requirements(max_error_ulp=2.0, max_condition=inf)
    found = choices_among(*NATIVE, requirements=accurate)
    lines += ["\nerrors of 2 ulp on any input", *headline_of(found)]
    assert_golden("\n".join(lines), Path(__file__).parent / "golden" / "headlines.txt")
