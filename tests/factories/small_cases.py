"""The smallest cases to run, and the shortest time to measure them in."""

from __future__ import annotations

from dataclasses import replace

from harness.records import Budget, Case, Direction

CASE = Case(implementation="native", shape=(16, 32))
BACKWARD = replace(CASE, direction=Direction.BACKWARD)
ONE_EPOCH = Budget(limit_s=0.0, min_epochs=1, max_epochs=1)
