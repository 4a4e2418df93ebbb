"""A driver that is killed in each phase of a run; 200 kills are an experiment."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from faults.kill_driver import PHASES, LossError, Run, kill_in


def test_a_run_whose_driver_is_killed_in_each_phase_loses_nothing(tmp_path: Path) -> None:
    kills = list(kill_in(PHASES, tmp_path, Random(1)))
    assert len(kills) == len(PHASES)


def test_a_record_other_than_the_acknowledged_one_is_found(tmp_path: Path) -> None:
    run = Run(tmp_path / "run.parquet", [], {})
    assert run.start(None, Random(1)) is None
    run.check()
    run.acknowledged["3"] = "another"
    with pytest.raises(LossError, match="case 3"):
        run.check()
