"""What a target changes or does outside itself is named, and put back where it can be."""

from __future__ import annotations

import gc
import inspect
import logging
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from factories.verify_targets import layer_norm, mutant

import implementations
from harness.numerics import error_measurement, oracle
from harness.records import shape_text
from harness.run import integrity
from harness.run.call import ContractViolationError
from harness.run.integrity import TamperingError, Trusted, observed


@pytest.fixture(scope="module")
def trusted() -> Trusted:
    return Trusted()


def fake(*_: Any, **__: Any) -> None:
    """Stand in for any function."""


def test_nothing_that_has_changed_is_no_tampering(trusted: Trusted) -> None:
    trusted.check()


@pytest.mark.parametrize(
    ("owner", "name", "said"),
    [
        (torch, "allclose", "torch.allclose"),
        (torch.Tensor, "backward", "torch.Tensor.backward"),
        (math, "__name__", "math.__name__"),
        (error_measurement, "verdict_of", "harness.numerics.error_measurement.verdict_of"),
        (integrity, "process_state", "harness.run.integrity.process_state"),
        (integrity.StatePart, "__init__", "harness.run.integrity.StatePart.__init__"),
    ],
)
def test_a_replaced_attribute_is_named_and_put_back(
    trusted: Trusted, owner: Any, name: str, said: str
) -> None:
    before = vars(owner)[name]
    setattr(owner, name, fake)
    with pytest.raises(TamperingError, match=f"replaces {said}: a target must not"):
        trusted.check()
    assert vars(owner)[name] is before
    trusted.check()


def test_a_deleted_function_is_put_back(trusted: Trusted) -> None:
    before = math.sqrt
    del math.sqrt
    with pytest.raises(TamperingError, match=r"replaces math\.sqrt"):
        trusted.check()
    assert math.sqrt is before


def test_an_attribute_that_hides_an_inherited_one_is_deleted(trusted: Trusted) -> None:
    torch.Tensor.clone = fake
    with pytest.raises(TamperingError, match=r"replaces torch\.Tensor\.clone"):
        trusted.check()
    assert "clone" not in vars(torch.Tensor)


def test_replaced_code_is_put_back(trusted: Trusted) -> None:
    before = oracle.twice_centred.__code__
    oracle.twice_centred.__code__ = fake.__code__
    with pytest.raises(TamperingError, match=r"the code of harness\.numerics\.oracle"):
        trusted.check()
    assert oracle.twice_centred.__code__ is before


def test_the_function_of_an_implementation_is_put_back(trusted: Trusted) -> None:
    before = implementations.native.function
    object.__setattr__(implementations.native, "function", fake)
    with pytest.raises(TamperingError, match=r"the function of implementations\.native"):
        trusted.check()
    assert implementations.native.function is before


@pytest.mark.parametrize(
    ("change", "read", "said"),
    [
        (lambda: torch.set_num_threads(2), torch.get_num_threads, "threads at 2, where it was 1"),
        (
            lambda: torch.set_default_dtype(torch.float64),
            torch.get_default_dtype,
            "the default dtype at torch.float64",
        ),
        (gc.disable, gc.isenabled, "garbage collector at False"),
        (lambda: sys.setprofile(fake), sys.getprofile, "profile function"),
        (torch.overrides.BaseTorchFunctionMode().__enter__, lambda: None, "modes at 1"),
    ],
)
@pytest.mark.parametrize("quick", [False, True])
def test_a_state_that_was_left_is_named_and_put_back(
    trusted: Trusted, change: Callable[[], Any], read: Callable[[], Any], said: str, quick: bool
) -> None:
    before = read()
    trusted.mark_state()
    change()
    with pytest.raises(TamperingError, match=said):
        trusted.check(quick=quick)
    assert read() == before
    trusted.check(quick=quick)


def test_a_state_that_was_marked_is_the_one_to_leave(trusted: Trusted) -> None:
    torch.set_num_threads(2)
    trusted.mark_state()
    trusted.check()
    torch.set_num_threads(1)
    with pytest.raises(TamperingError, match="threads at 1, where it was 2"):
        trusted.check()
    torch.set_num_threads(1)
    trusted.mark_state()


def test_a_quick_check_looks_at_what_judges_alone(
    trusted: Trusted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity, "process_state", fake)
    trusted.check(quick=True)
    monkeypatch.setattr(error_measurement, "verdict_of", fake)
    with pytest.raises(TamperingError, match="verdict_of: "):
        trusted.check(quick=True)
    with pytest.raises(TamperingError, match="process_state: "):
        trusted.check()


def test_more_than_three_changes_are_counted(
    trusted: Trusted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("add", "sub", "mul", "div", "exp"):
        monkeypatch.setattr(torch, name, fake)
    with pytest.raises(TamperingError, match=", and 2 more changes: "):
        trusted.check()


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


# === What no LayerNorm needs to do in a call is named; what libraries do by themselves is not


def make(call: Callable[[], object]) -> None:
    """Make an observed call."""
    with observed():
        call()


# of the harness, by the name in its globals: in a function of the tests, the end of the context
# would be a call of the harness by a target
observe = FunctionType(make.__code__, globals() | {"__name__": "harness.run.case"})


def open_a_file() -> None:
    with open(os.devnull):
        pass


def spawn() -> None:
    with suppress(OSError):
        os.posix_spawn("/nowhere", ["nowhere"], {})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (open_a_file, r"opens a file \(open\)"),
        (lambda: os.close(os.open(os.devnull, os.O_RDONLY)), r"opens a file \(open\)"),
        (spawn, r"starts a process \(posix_spawn\)"),
        (lambda: torch.set_num_threads(1), r"sets the number of threads \(set_num_threads\)"),
        (gc.get_objects, r"searches the objects of the process \(get_objects\)"),
        (sys._getframe, r"reads the frames of its callers \(_getframe\)"),
        (inspect.stack, r"reads the frames of its callers \(_getframe\)"),
        (lambda: shape_text((2, 3)), r"calls harness\.records\.text\.shape_text"),
    ],
)
def test_what_no_layer_norm_needs_is_named(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ContractViolationError, match=f"in a call it {said}"):
        observe(call)


def test_all_that_is_seen_is_named_once() -> None:
    def call() -> None:
        open_a_file()
        gc.get_objects()
        open_a_file()

    both = r"it opens a file \(open\) and searches the objects of the process \(get_objects\), "
    with pytest.raises(ContractViolationError, match=both):
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


def test_an_exception_of_the_call_is_not_replaced() -> None:
    def call() -> None:
        open_a_file()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        observe(call)


def test_a_profile_function_that_is_in_use_stays() -> None:
    def profiling(*_: object) -> None:
        """Do nothing."""

    sys.setprofile(profiling)
    try:
        observe(open_a_file)
        assert sys.getprofile() is profiling
    finally:
        sys.setprofile(None)
