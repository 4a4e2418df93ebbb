"""What no LayerNorm needs to do in a call is named; what libraries do by themselves is not."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType

import pytest
import torch
from factories.verify_targets import layer_norm, mutant

from harness.records.text import shape_text
from harness.run.call import ContractViolationError
from harness.run.integrity import observed


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
