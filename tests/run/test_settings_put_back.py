"""Settings that a target leaves changed are named or put back before the next target."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factories.verify_targets import layer_norm

from harness.records import Budget, Case, Direction
from harness.run import TamperingError, Trusted, process_state, settings_restored
from harness.run.case import CaseRunner
from harness.verify import verify
from implementations import adopt

QUIET: dict[str, Callable[[], object]] = {
    "NumPy's error state": lambda: np.seterr(all="raise"),
    "the working directory": lambda: os.chdir("/"),
    "the handlers of signals": lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    "the deterministic mode": lambda: torch.set_deterministic_debug_mode(1),
    "cuDNN": lambda: setattr(torch.backends.cudnn, "enabled", False),
}
NAMED: dict[str, Callable[[], object]] = {
    "the interval of thread switches": lambda: sys.setswitchinterval(1e-6),
    "the thresholds of the garbage collector": lambda: gc.set_threshold(7, 7, 7),
    "oneDNN": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "the rounding mode": lambda: ctypes.CDLL(None).fesetround(0x800),
}
FAST: dict[str, Any] = {
    "quick": True,
    "dtypes": ("float32",),
    "directions": (Direction.FORWARD,),
}


def leaving(change: Callable[[], object]) -> Callable[..., torch.Tensor]:
    """Return a right LayerNorm whose calls change a setting."""

    def norm(*arguments: Any) -> torch.Tensor:
        change()
        return layer_norm(*arguments)

    return norm


@pytest.mark.parametrize("name", [*QUIET, *NAMED])
def test_a_setting_is_put_back_after_a_case_and_after_an_import(name: str) -> None:
    change = (QUIET | NAMED)[name]
    before = process_state()
    case = Case(implementation="norm", shape=(4, 8))
    record = CaseRunner("here").run(case, (), Budget(), lambda _: adopt(leaving(change), "norm"))
    assert (name in record.reason) is (name in NAMED)
    assert process_state()[name] == before[name]
    Trusted().imported("norm", lambda _: change())
    assert process_state()[name] == before[name]


@pytest.mark.parametrize("name", NAMED)
def test_a_setting_that_a_call_leaves_is_named(name: str) -> None:
    trusted = Trusted()
    with settings_restored():
        NAMED[name]()
        with pytest.raises(TamperingError, match=f"leaves {name} at"):
            trusted.check(quick=True)
        trusted.check()


def test_the_next_target_is_right_after_one_that_changes_the_error_state() -> None:
    changing = leaving(QUIET["NumPy's error state"])
    found = {finding.text for finding in verify(changing, **FAST).violations}
    assert "changes NumPy's error state of the process" in found
    assert not verify(layer_norm, **FAST).is_wrong


def test_a_folder_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    here, gone = Path.cwd(), tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    try:
        with settings_restored():
            os.chdir(here)
            gone.rmdir()
    finally:
        os.chdir(here)
