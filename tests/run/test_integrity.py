"""What a target changes or does outside itself is named, and put back where it can be.

More of it is in tests/cheats, where a whole run and a whole verification meet it.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from threading import Thread
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from factories.small_cases import CASE, ONE_EPOCH
from factories.verify_targets import layer_norm, leaving, mutant

from harness.records import Direction
from harness.records.refusal import refusing
from harness.run import (
    CaseRunner,
    ContractViolationError,
    TamperingError,
    Trusted,
    observed,
    process_state,
)
from harness.verify import verify
from implementations import adopt

set_multithreading_enabled = torch.autograd.grad_mode.set_multithreading_enabled


@pytest.fixture(scope="module")
def trusted() -> Trusted:
    return Trusted()


def fake(*_: Any, **__: Any) -> None:
    """Stand in for any function."""


@pytest.mark.parametrize(
    "name",
    [
        "torch.Tensor.clone",  # hides an inherited one
        "math.sqrt",
        "harness.run.state.StatePart.__init__",
    ],
)
def test_a_replaced_attribute_is_named_and_put_back(trusted: Trusted, name: str) -> None:
    path, _, attribute = name.rpartition(".")
    owner = resolve_name(path)
    before = vars(owner).get(attribute)
    setattr(owner, attribute, fake)
    with pytest.raises(TamperingError, match=f"^replaces {name}: a target must not"):
        trusted.check()
    assert vars(owner).get(attribute) is before
    trusted.check()


def test_an_emptied_closure_is_named_and_filled_again(trusted: Trusted) -> None:
    (cell,) = refusing.__closure__ or ()
    held = cell.cell_contents
    del cell.cell_contents
    with pytest.raises(TamperingError, match=r"replaces the closure of harness\.\S+refusing"):
        trusted.check()
    assert cell.cell_contents is held


def test_a_state_that_is_not_the_marked_one_is_named_and_put_back(trusted: Trusted) -> None:
    torch.set_num_threads(2)
    trusted.mark_state()
    trusted.check(quick=True)
    torch.set_num_threads(1)
    sys.setprofile(fake)
    said = "threads at 1, where it was 2, leaves Python's profile function at"
    with pytest.raises(TamperingError, match=said):
        trusted.check(quick=True)
    assert (torch.get_num_threads(), sys.getprofile()) == (2, None)
    torch.set_num_threads(1)
    trusted.mark_state()


def test_what_the_compiler_replaces_is_no_tampering(
    trusted: Trusted, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(torch.__file__).parent / "_dynamo" / "any.py"
    monkeypatch.setattr(torch, "manual_seed", eval(compile("lambda seed: None", file, "eval")))
    trusted.check()


def test_an_import_that_changes_something_is_refused_each_time(trusted: Trusted) -> None:
    def find(target: str) -> str:
        if target == "bad" and len(found) == 0:
            torch.equal = fake
        found.append(target)
        return target

    found: list[str] = []
    for _ in range(2):
        with pytest.raises(TamperingError, match=r"its import replaces torch\.equal"):
            trusted.imported("bad", find)
        assert trusted.imported("good", find) == "good"
    assert found == ["bad", "good"] * 2


# --- what no LayerNorm needs to do in a call ------------------------------------------------------


def make(call: Callable[[], object]) -> None:
    """Make an observed call."""
    with observed():
        call()


# of the harness, by the name in its globals: in a function of the tests, the end of the context
# would be a call of the harness by a target
observe = FunctionType(make.__code__, globals() | {"__name__": "harness.run.case"})


def in_a_thread(call: Callable[[], object]) -> None:
    thread = Thread(target=lambda: call())  # from Python: only then the profile function sees it
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: open(os.devnull).close(), r"opens a file \(open\)"),
        (lambda: os.posix_spawn(sys.executable, ["python", "-c", ""], {}), "starts a process"),
        (inspect.stack, r"reads the frames of its callers \(_getframe\)"),
        (gc.get_objects, r"searches the objects of the process"),
        (lambda: in_a_thread(gc.get_objects), r"searches the objects of the process"),
    ],
)
def test_what_no_layer_norm_needs_is_named_once(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ContractViolationError, match=f"in a call it {said}"):
        observe(call)


@pytest.mark.parametrize(
    "call",
    [
        lambda: layer_norm(torch.ones(2, 4), (4,)),
        logging.currentframe,  # of Python's own library, which reads frames
        lambda: mutant("eps_ignored").function(torch.ones(2, 4), (4,)),  # in the harness
    ],
)
def test_other_calls_are_allowed(call: Callable[[], object]) -> None:
    observe(call)


def test_a_backward_on_a_gpu_is_called_in_the_observed_thread() -> None:
    before: list[bool] = []
    observe(lambda: before.append(set_multithreading_enabled(True).prev))
    assert [*before, set_multithreading_enabled(True).prev] == [False, True]


# --- settings that a target leaves changed are named or put back before the next target -----------

QUIET: dict[str, Callable[[], object]] = {
    "NumPy's error state": lambda: np.seterr(all="raise"),
    "the working directory": lambda: os.chdir("/"),
    "the handlers of signals": lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    "cuDNN": lambda: setattr(torch.backends.cudnn, "enabled", False),
}
NAMED: dict[str, Callable[[], object]] = {
    "the interval of thread switches": lambda: sys.setswitchinterval(1e-6),
    "oneDNN": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "the rounding mode": lambda: ctypes.CDLL(None).fesetround(0x800),
}
FAST: dict[str, Any] = {"quick": True, "dtypes": ["float32"], "directions": [Direction.FORWARD]}


@pytest.mark.parametrize("name", [*QUIET, *NAMED])
def test_a_setting_is_put_back_after_a_case_and_after_an_import(name: str) -> None:
    change = (QUIET | NAMED)[name]
    before = process_state()
    target = adopt(leaving(change), "norm")
    record = CaseRunner("here").run(CASE, (), ONE_EPOCH, lambda _: target)
    assert (name in record.reason) is (name in NAMED)
    assert process_state()[name] == before[name]
    Trusted().imported("norm", lambda _: change())
    assert process_state()[name] == before[name]


def test_the_next_target_is_right_after_one_that_changes_the_error_state() -> None:
    changing = leaving(QUIET["NumPy's error state"])
    found = {finding.text for finding in verify(changing, **FAST).violations}
    assert "changes NumPy's error state of the process" in found
    assert not verify(layer_norm, **FAST).is_wrong
