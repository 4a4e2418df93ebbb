"""A run that was cut short says so."""

from __future__ import annotations

from typing import Any

import pytest
from compared_runs import make_record, results_of


@pytest.mark.parametrize(
    ("run", "is_unfinished"), [({}, False), ({"wall_s": None}, True), ({"planned": 9}, True)]
)
def test_a_run_without_an_end_or_with_cases_left_is_unfinished(
    run: dict[str, Any], is_unfinished: bool
) -> None:
    assert bool(results_of(make_record(), **run).why_unfinished) is is_unfinished
