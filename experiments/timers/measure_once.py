"""A process that measures and ends: timer, seed and pairs as arguments, a line of JSON out.

Started by compare_timers.py for each measurement anew.
"""

from __future__ import annotations

import json
import sys
from random import Random

from pairs import PAIRS, prepare_torch
from timers import TIMERS

from harness.measure.memory import use_steady_allocation
from harness.records import Allocation


def main() -> None:
    name, seed, *pairs = sys.argv[1:]
    timer = next(known for known in TIMERS if known.name == name)
    assert timer.measure is not None  # the others have processes of their own
    prepare_torch()
    # before anything is allocated, as the harness does
    if timer.steady and use_steady_allocation() is not Allocation.STEADY:
        raise SystemExit("the allocator cannot be told to reuse pages: it is not glibc's")
    random = Random(seed)
    found = [(pair, *timer.measure(PAIRS[pair], random)) for pair in pairs]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
