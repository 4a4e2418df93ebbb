"""Modules of two revisions in one process: each meets its own, and what is shared is shared."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from git_repository import LAYER_NORM, Repository

import implementations
from harness.measure.environment import compiler
from harness.numerics.computed import function_of
from harness.records import Allocation, Budget, Case, Measurement, Mode, Record, Status
from harness.regression.ab.lookup import look_up
from harness.regression.ab.messages import (
    Availability,
    LookupRequest,
    LookupResult,
    RunBaseCase,
    TimeAgainstBase,
)
from harness.regression.ab.revision import BASE, Checkout, checked_out
from harness.regression.ab.side_by_side import side_by_side
from harness.run.case import CaseRunner
from harness.run.messages import RunCase
from implementations.contract import Algorithm, Implementation

NATIVE = implementations.find("native")
Open = Callable[[dict[str, str], dict[str, str]], Checkout]
PACKAGE = """
def said():
    return "{when}"
"""


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Make a repository of files as they were, and change them to what they are now."""
    known = set(sys.modules)
    found: list[object] = []

    def make(before: dict[str, str], now: dict[str, str]) -> Checkout:
        repository = Repository.at(tmp_path / "repository", before)
        monkeypatch.chdir(repository.path)
        monkeypatch.syspath_prepend(repository.path)
        context = checked_out(repository.path.resolve(), "HEAD")
        checkout = context.__enter__()
        found.append(context)
        for name in before.keys() - now.keys():
            (repository.path / name).unlink()
        repository.write(now)
        return checkout

    finders = list(sys.meta_path)
    yield make
    for context in found:
        context.__exit__(None, None, None)  # type: ignore[attr-defined]
    sys.meta_path[:] = finders
    for name in set(sys.modules) - known:
        if name.startswith(("mine", "other", "implementation", "lacks", "layernorm_")):
            del sys.modules[name]


def both(checkout: Checkout, target: str) -> tuple[object, object]:
    """Return what the function of a target says, in the base and now."""
    arguments = (torch.zeros(1), (1,))
    base, here = side_by_side(checkout).find(target), implementations.find(target)
    return base.function(*arguments), here.function(*arguments)


def says(text: str) -> str:
    """Return a module whose function f says what an expression is."""
    return f"{text}\n\ndef f(*arguments):\n    return said()\n"


def as_before(files: dict[str, str]) -> dict[str, str]:
    return {name: text.replace("{when}", "before") for name, text in files.items()}


def as_now(files: dict[str, str]) -> dict[str, str]:
    return {name: text.replace("{when}", "now") for name, text in files.items()}


# --- imports -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "from mine.words import said",
        "from mine import words\nsaid = words.said",
        "import mine.words\nsaid = mine.words.said",
        "import mine.words as w\nsaid = w.said",
        "import mine.words, os\nsaid = lambda: mine.words.said() if os.sep else None",
        "from other import said",
        "from other import *",
        "def said():\n    from mine.words import said\n    return said()",
        "def said():\n    import mine.words\n    return mine.words.said()",
        "class _C:\n    from mine.words import said as _said\nsaid = _C._said",
        "import importlib\nsaid = importlib.import_module('mine.words').said",
        "from importlib import import_module\nsaid = import_module(f'mine.{\"words\"}').said",
        "from importlib import import_module\nname = 'mine.words'\nsaid = import_module(name).said",
        "import sys, mine.words\nsaid = sys.modules['mine.words'].said",
        "from importlib import import_module\nsaid = import_module('.words', 'mine').said",
    ],
)
def test_each_revision_imports_its_own(opened: Open, text: str) -> None:
    files = {
        "mine/__init__.py": "",
        "mine/words.py": PACKAGE,
        "other.py": "from mine.words import said",
        "implementation.py": says(text),
    }
    checkout = opened(as_before(files), as_now(files))
    assert both(checkout, "implementation.py:f") == ("before", "now")
    assert both(checkout, "implementation:f") == ("before", "now")


def test_relative_imports_and_cycles_are_each_revisions_own(opened: Open) -> None:
    files = {
        "mine/__init__.py": "from .words import said\nfrom .implementation import f",
        "mine/words.py": "import mine\n" + PACKAGE,
        "mine/implementation.py": says("from . import words\nsaid = words.said"),
    }
    checkout = opened(as_before(files), as_now(files))
    assert both(checkout, "mine:f") == ("before", "now")
    assert both(checkout, "mine.implementation:f") == ("before", "now")


def test_a_module_that_is_there_no_more_is_imported_all_the_same(opened: Open) -> None:
    before = {
        "mine.py": PACKAGE.replace("{when}", "before"),
        "implementation.py": says("from mine import said"),
    }
    checkout = opened(before, {"implementation.py": says("def said(): return 'now'")})
    assert both(checkout, "implementation.py:f") == ("before", "now")


def test_what_the_repository_does_not_hold_is_shared(opened: Open) -> None:
    text = "import json, torch\ndef f(*arguments):\n    return json, torch"
    checkout = opened({"implementation.py": text}, {"implementation.py": text})
    then, now = both(checkout, "implementation.py:f")
    assert then == now == (json, torch)


def test_what_is_installed_within_the_repository_is_shared(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"implementation.py": "import other\ndef f(*arguments):\n    return other"}
    environment = ".venv/lib/python3/site-packages"
    checkout = opened(files, {**files, f"{environment}/other.py": ""})
    monkeypatch.syspath_prepend(Path(environment).resolve())
    then, now = both(checkout, "implementation.py:f")
    assert then is now is sys.modules["other"]


def test_a_module_of_a_folder_that_is_new_is_not_shared(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "try:\n    from other import said\nexcept ImportError:\n    said = lambda: 'before'\n"
    files = {"implementation.py": says(text)}
    checkout = opened(files, {**files, "src/other.py": PACKAGE.replace("{when}", "now")})
    monkeypatch.syspath_prepend(Path("src").resolve())
    assert both(checkout, "implementation.py:f") == ("before", "now")


def test_what_is_not_installed_is_missing_by_its_name(opened: Open) -> None:
    text = "try:\n    import no_such_thing\nexcept ImportError as e:\n    said = lambda: e_name\n"
    text = text.replace("    said", "    e_name = e.name\n    said")
    checkout = opened({"implementation.py": says(text)}, {"implementation.py": says(text)})
    assert both(checkout, "implementation.py:f") == ("no_such_thing", "no_such_thing")


def test_words_that_are_no_modules_stay_what_they_are(opened: Open) -> None:
    words = "'implementation.py', 'implementation.f', 'mine.', 'mine', 'implementation', 'a mine.'"
    text = f"def f(*arguments):\n    return {words}"
    checkout = opened(
        {"implementation.py": text, "mine/__init__.py": ""}, {"implementation.py": text}
    )
    then, now = both(checkout, "implementation.py:f")
    assert isinstance(then, tuple)
    assert then[:2] + then[3:] == now[:2] + now[3:]  # type: ignore[index]
    assert then[2].endswith(".mine.")  # what a name is put together from


@pytest.mark.parametrize("name", ["'json'", "f'js{\"on\"}'", "json_name", "'json.decoder'"])
def test_what_is_imported_by_name_from_elsewhere_is_shared(opened: Open, name: str) -> None:
    text = "from importlib import import_module\njson_name = 'json'\n"
    text += f"def f(*arguments):\n    return import_module({name})"
    found, now = both(
        opened({"implementation.py": text}, {"implementation.py": text}), "implementation.py:f"
    )
    assert found is now


def test_files_of_one_name_are_told_apart(opened: Open) -> None:
    files = {"a/ln.py": "def f(*_): return 'a'", "b/ln.py": "def f(*_): return 'b'"}
    checkout = opened(files, files)
    assert both(checkout, "a/ln.py:f") == ("a", "a")
    assert both(checkout, "b/ln.py:f") == ("b", "b")


def test_the_modules_of_this_revision_stay_what_they_are(opened: Open) -> None:
    before = {name: module for name, module in sys.modules.items() if name.startswith("implement")}
    checkout = opened({"implementation.py": LAYER_NORM}, {})
    side_by_side(checkout).find("implementation.py:layer_norm")
    assert {name: sys.modules[name] for name in before} == before


# --- operators -----------------------------------------------------------------------------------

OPERATORS = """
import torch

@torch.library.custom_op("{space}::said", mutates_args=())
def _said(x: torch.Tensor) -> torch.Tensor:
    return x + {number}

@_said.register_fake
def _(x):
    return x.clone()

library = torch.library.Library("{space}", "FRAGMENT")
library.define("again(Tensor x) -> Tensor")
library.impl("again", lambda x: x + 10 * {number}, "CompositeExplicitAutograd")

def f(x, *arguments):
    return _said(x).item(), torch.ops.{space}.again(x).item()
"""


def test_operators_of_one_name_are_each_revisions_own(opened: Open) -> None:
    space = "layernorm_bench_test_both"
    texts = [OPERATORS.replace("{space}", space).replace("{number}", each) for each in "12"]
    checkout = opened({"implementation.py": texts[0]}, {"implementation.py": texts[1]})
    assert both(checkout, "implementation.py:f") == ((1, 10), (2, 20))
    assert both(checkout, "implementation.py:f") == ((1, 10), (2, 20))


def test_an_operator_that_would_take_anothers_place_is_refused(opened: Open) -> None:
    text = OPERATORS.partition("library =")[0].replace('"{space}::said"', 'SPACE + "::said"')
    text = text.replace("import torch", "import torch\nSPACE = 'layernorm_bench_test_one'")
    text += "def f(x, *arguments):\n    return _said(x)\n"
    checkout = opened(
        {"implementation.py": text.replace("{number}", "1")},
        {"implementation.py": text.replace("{number}", "2")},
    )
    implementations.find("implementation.py:f")
    (found,) = look_up(LookupRequest(checkout, ("implementation.py:f",)))
    assert found.availability is Availability.BROKEN
    assert "registers the operator layernorm_bench_test_one::said over" in found.reason


# --- what is declared ----------------------------------------------------------------------------

CONTRACT = """
from dataclasses import dataclass
from enum import StrEnum

class Algorithm(StrEnum):
    ONE_PASS = "one_pass"
    KAHAN = "kahan"

class UnsupportedError(Exception):
    pass

@dataclass(frozen=True)
class Implementation:
    name: str
    function: object
    algorithm: Algorithm
    motto: str = "of no use now"

def f(x, *arguments):
    raise UnsupportedError("not on a Sunday")

mine = Implementation("f", f, Algorithm.ONE_PASS)
unknown = Implementation("f", f, Algorithm.KAHAN)
"""


def test_what_an_older_class_declares_is_declared_by_this_ones(opened: Open) -> None:
    checkout = opened({"implementation.py": CONTRACT}, {"implementation.py": CONTRACT})
    found = side_by_side(checkout).find("implementation.py:mine")
    assert type(found) is Implementation
    assert found.algorithm is Algorithm.ONE_PASS
    assert (found.name, found.devices) == ("f", NATIVE.devices)


def test_a_declaration_unknown_to_this_revision_is_not_comparable(opened: Open) -> None:
    checkout = opened({"implementation.py": CONTRACT}, {"implementation.py": CONTRACT})
    (found,) = look_up(LookupRequest(checkout, ("implementation.py:unknown",)))
    assert found.availability is Availability.NOT_COMPARABLE
    assert "the base declares the algorithm 'kahan'" in found.reason


def test_a_plain_function_is_held_to_what_any_is(opened: Open) -> None:
    checkout = opened({"implementation.py": LAYER_NORM}, {})
    assert side_by_side(checkout).find("implementation.py:layer_norm") == replace(
        NATIVE,
        name="implementation.py:layer_norm",
        source="implementation.py:layer_norm",
        function=side_by_side(checkout).find("implementation.py:layer_norm").function,
        declared=False,
    )


# --- what is there, and what is not --------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "availability", "reason"),
    [
        ("implementation.py:layer_norm", Availability.PRESENT, ""),
        ("implementation:layer_norm", Availability.PRESENT, ""),
        ("implementation.py:gone", Availability.ABSENT, "implementation.py has no 'gone'"),
        ("gone.py:f", Availability.ABSENT, "no file gone.py"),
        ("mine.gone:f", Availability.ABSENT, "no module 'mine.gone'"),
        ("broken.py:f", Availability.BROKEN, "cannot import: ZeroDivisionError: division by zero"),
        (
            "lacks:f",
            Availability.BROKEN,
            "lacks: cannot import: ModuleNotFoundError: No module named",
        ),
        ("typo.py:f", Availability.BROKEN, "cannot import: SyntaxError"),
        ("implementation.py:torch", Availability.BROKEN, "is of type module, not a function"),
    ],
)
@pytest.mark.parametrize("whose", ["base", "now"])
def test_what_a_revision_has_of_a_target(
    opened: Open, whose: str, target: str, availability: Availability, reason: str
) -> None:
    files = {
        "implementation.py": LAYER_NORM,
        "broken.py": "1 / 0",
        "lacks.py": "import no_such_thing",
        "typo.py": "def f(:",
        "mine/__init__.py": "",
    }
    checkout = opened(files, files)
    (found,) = look_up(LookupRequest(checkout if whose == "base" else None, (target,)))
    if target == "implementation.py:torch" and whose == "now":
        availability = Availability.ABSENT  # a name that is no function any more is gone
    assert found.availability is availability, found
    assert reason in found.reason or whose == "now"
    assert bool(found.devices) is (availability is Availability.PRESENT)


def test_a_module_of_another_place_has_no_base(opened: Open) -> None:
    checkout = opened({"implementation.py": LAYER_NORM}, {})
    (found,) = look_up(LookupRequest(checkout, ("json:dumps",)))
    assert found.availability is Availability.BROKEN
    assert "json" in found.reason


@pytest.mark.parametrize(
    ("listing", "members"), [("ALL", implementations.ALL), ("PEERS", implementations.PEERS)]
)
def test_what_is_listed_is_told_of_each(listing: str, members: tuple[Implementation, ...]) -> None:
    assert look_up(LookupRequest(None, (), (listing,))) == tuple(
        LookupResult(each.name, Availability.PRESENT, devices=each.devices, listing=listing)
        for each in members
    )


def test_a_revision_without_the_package_is_broken(opened: Open) -> None:
    checkout = opened({"implementation.py": LAYER_NORM}, {})
    (found,) = look_up(LookupRequest(checkout, (), ("ALL",)))
    assert found.availability is Availability.BROKEN


# --- running beside each other -------------------------------------------------------------------


def answered(request: RunCase) -> Record:
    return request.answer(CaseRunner("here", Allocation.DEFAULT), lambda update: None)


def case_of(target: str, **changes: object) -> Case:
    return replace(Case(implementation=target, shape=(8, 32)), **changes)  # type: ignore[arg-type]


QUICK = Budget(min_epochs=1, max_epochs=1, limit_s=0.1)


@pytest.mark.parametrize(
    ("where", "status"),
    [("base_1.implementations.contract", Status.UNSUPPORTED), ("numba.errors", Status.ERROR)],
)
def test_what_the_base_declines_in_a_class_of_its_own_is_unsupported(
    opened: Open, where: str, status: Status
) -> None:
    text = CONTRACT.replace("(Exception):\n", f"(Exception):\n    __module__ = {where!r}\n")
    checkout = opened({"implementation.py": text}, {})
    record = answered(RunBaseCase(case_of(BASE + "implementation.py:f"), (), QUICK, checkout))
    assert record.status is status
    assert record.reason.endswith("not on a Sunday")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, as it loads the compiler
@pytest.mark.parametrize(
    "mode",
    [
        Mode.EAGER,
        pytest.param(
            Mode.COMPILED,
            marks=pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler"),
        ),
    ],
)
def test_a_case_is_timed_beside_its_base_and_nothing_else(opened: Open, mode: Mode) -> None:
    checkout = opened({"implementation.py": LAYER_NORM}, {"implementation.py": LAYER_NORM})
    case = case_of("implementation.py:layer_norm", mode=mode)
    record = answered(TimeAgainstBase(case, (Measurement.LATENCY,), QUICK, checkout))
    assert record.status is Status.OK
    assert record.latency is not None
    assert [each.role for each in record.latency.arms] == ["subject", "reference"]
    assert record.latency.reference_ratio is not None


def test_what_the_base_raises_beside_a_case_is_an_error(opened: Open) -> None:
    checkout = opened(
        {"implementation.py": "def layer_norm(*_): raise OSError('no')"},
        {"implementation.py": LAYER_NORM},
    )
    case = case_of("implementation.py:layer_norm")
    record = answered(TimeAgainstBase(case, (Measurement.LATENCY,), QUICK, checkout))
    assert (record.status, record.reason) == (Status.ERROR, "OSError: no")
    assert record.latency is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, as it loads the compiler
def test_what_a_case_was_compiled_to_is_not_forgotten_for_its_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resets: list[None] = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(None))
    function_of(NATIVE, Mode.COMPILED, keep=True)
    assert not resets
    function_of(NATIVE, Mode.COMPILED)
    assert resets
