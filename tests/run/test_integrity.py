"""What a target changes or does outside itself is named, and put back where it can be.

More of it is in tests/cheats, where a whole run and a whole verification meet it.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from types import FunctionType
from typing import Any

import pytest
import torch
from factories.verify_targets import layer_norm, mutant

from harness.run import ContractViolationError, TamperingError, Trusted, observed


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


@pytest.mark.parametrize("quick", [False, True])
def test_a_state_that_is_not_the_marked_one_is_named_and_put_back(
    trusted: Trusted, quick: bool
) -> None:
    torch.set_num_threads(2)
    trusted.mark_state()
    trusted.check(quick=quick)
    torch.set_num_threads(1)
    sys.setprofile(fake)
    said = "threads at 1, where it was 2, leaves Python's profile function at"
    with pytest.raises(TamperingError, match=said):
        trusted.check(quick=quick)
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


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: open(os.devnull).close(), r"opens a file \(open\)"),
        (lambda: os.posix_spawn(sys.executable, ["python", "-c", ""], {}), "starts a process"),
        (inspect.stack, r"reads the frames of its callers \(_getframe\)"),
        (gc.get_objects, r"searches the objects of the process"),
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
