"""Modules of two revisions in one process: each imports its own, and other modules are shared."""

from __future__ import annotations

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
from harness.regression.ab.availability import Availability, LookupResult
from harness.regression.ab.lookup import look_up
from harness.regression.ab.messages import RunBaseCase, TimeAgainstBase
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
    """Return a function that makes a repository of files and then changes them."""
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
    """Return the result of a target's function, in the base and now."""
    arguments = (torch.zeros(1), (1,))
    base, here = side_by_side(checkout).find(target), implementations.find(target)
    return base.function(*arguments), here.function(*arguments)


def says(text: str) -> str:
    """Return a module whose function f returns said()."""
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


def test_relative_imports_and_cycles_work_in_each_revision(opened: Open) -> None:
    files = {
        "mine/__init__.py": "from .words import said\nfrom .implementation import f",
        "mine/words.py": "import mine\n" + PACKAGE,
        "mine/implementation.py": says("from . import words\nsaid = words.said"),
    }
    checkout = opened(as_before(files), as_now(files))
    assert both(checkout, "mine:f") == ("before", "now")
    assert both(checkout, "mine.implementation:f") == ("before", "now")


@pytest.mark.parametrize(
    "name", ["json", "torch", "load('json')", "load(f'js{\"on\"}')", "load(NAME)"]
)
def test_modules_from_outside_the_repository_are_shared(opened: Open, name: str) -> None:
    text = "import json, torch\nfrom importlib import import_module as load\nNAME = 'json.decoder'"
    text += f"\ndef f(*arguments):\n    return {name}"
    then, now = both(
        opened({"implementation.py": text}, {"implementation.py": text}), "implementation.py:f"
    )
    assert then is now


def test_a_module_that_was_deleted_is_imported_in_the_base(opened: Open) -> None:
    before = {
        "mine.py": PACKAGE.replace("{when}", "before"),
        "implementation.py": says("from mine import said"),
    }
    checkout = opened(before, {"implementation.py": says("def said(): return 'now'")})
    assert both(checkout, "implementation.py:f") == ("before", "now")


def test_a_package_installed_inside_the_repository_is_shared(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"implementation.py": "import other\ndef f(*arguments):\n    return other"}
    environment = ".venv/lib/python3/site-packages"
    checkout = opened(files, {**files, f"{environment}/other.py": ""})
    monkeypatch.syspath_prepend(Path(environment).resolve())
    then, now = both(checkout, "implementation.py:f")
    assert then is now is sys.modules["other"]


def test_a_module_of_a_new_folder_is_not_shared(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "try:\n    from other import said\nexcept ImportError:\n    said = lambda: 'before'\n"
    files = {"implementation.py": says(text)}
    checkout = opened(files, {**files, "src/other.py": PACKAGE.replace("{when}", "now")})
    monkeypatch.syspath_prepend(Path("src").resolve())
    assert both(checkout, "implementation.py:f") == ("before", "now")


def test_files_of_one_name_are_different_modules(opened: Open) -> None:
    files = {"a/ln.py": "def f(*_): return 'a'", "b/ln.py": "def f(*_): return 'b'"}
    checkout = opened(files, files)
    assert both(checkout, "a/ln.py:f") == ("a", "a")
    assert both(checkout, "b/ln.py:f") == ("b", "b")


def test_the_modules_of_this_revision_are_not_replaced(opened: Open) -> None:
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


def test_an_operator_that_would_replace_another_is_refused(opened: Open) -> None:
    text = OPERATORS.partition("library =")[0].replace('"{space}::said"', 'SPACE + "::said"')
    text = text.replace("import torch", "import torch\nSPACE = 'layernorm_bench_test_one'")
    text += "def f(x, *arguments):\n    return _said(x)\n"
    checkout = opened(
        {"implementation.py": text.replace("{number}", "1")},
        {"implementation.py": text.replace("{number}", "2")},
    )
    implementations.find("implementation.py:f")
    (found,) = look_up(checkout, ("implementation.py:f",), ())
    assert found.availability is Availability.BROKEN
    assert "registers the operator layernorm_bench_test_one::said over" in found.reason


# --- declarations --------------------------------------------------------------------------------

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


def test_the_declaration_of_an_older_class_is_converted(opened: Open) -> None:
    checkout = opened({"implementation.py": CONTRACT}, {"implementation.py": CONTRACT})
    found = side_by_side(checkout).find("implementation.py:mine")
    assert type(found) is Implementation
    assert found.algorithm is Algorithm.ONE_PASS
    assert (found.name, found.devices) == ("f", NATIVE.devices)


def test_a_declaration_unknown_to_this_revision_is_not_comparable(opened: Open) -> None:
    checkout = opened({"implementation.py": CONTRACT}, {"implementation.py": CONTRACT})
    (found,) = look_up(checkout, ("implementation.py:unknown",), ())
    assert found.availability is Availability.NOT_COMPARABLE
    assert "the base declares the algorithm 'kahan'" in found.reason


def test_a_plain_function_declares_nothing(opened: Open) -> None:
    checkout = opened({"implementation.py": LAYER_NORM}, {})
    assert side_by_side(checkout).find("implementation.py:layer_norm") == replace(
        NATIVE,
        name="implementation.py:layer_norm",
        source="implementation.py:layer_norm",
        function=side_by_side(checkout).find("implementation.py:layer_norm").function,
        declared=False,
    )


# --- availability --------------------------------------------------------------------------------


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
def test_a_target_is_looked_up_in_either_revision(
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
    (found,) = look_up(checkout if whose == "base" else None, (target,), ())
    if target == "implementation.py:torch" and whose == "now":
        availability = Availability.ABSENT  # a name that is no function any more is gone
    assert found.availability is availability, found
    assert reason in found.reason or whose == "now"
    assert bool(found.devices) is (availability is Availability.PRESENT)


@pytest.mark.parametrize(
    ("listing", "members"), [("ALL", implementations.ALL), ("PEERS", implementations.PEERS)]
)
def test_every_member_of_a_listing_is_looked_up(
    listing: str, members: tuple[Implementation, ...]
) -> None:
    assert look_up(None, (), (listing,)) == tuple(
        LookupResult(each.name, Availability.PRESENT, devices=each.devices, listing=listing)
        for each in members
    )


def test_a_listing_or_module_that_the_revision_does_not_hold_is_broken(opened: Open) -> None:
    checkout = opened({"implementation.py": LAYER_NORM}, {})
    listing, module = look_up(checkout, ("json:dumps",), ("ALL",))
    assert listing.availability is module.availability is Availability.BROKEN
    assert "json" in module.reason  # it is of no repository


# --- running both revisions ----------------------------------------------------------------------


def answered(request: RunCase) -> Record:
    return request.answer(CaseRunner("here", Allocation.DEFAULT), lambda update: None)


def case_of(target: str, **changes: object) -> Case:
    return replace(Case(implementation=target, shape=(8, 32)), **changes)  # type: ignore[arg-type]


QUICK = Budget(min_epochs=1, max_epochs=1, limit_s=0.1)


@pytest.mark.parametrize(
    ("where", "status"),
    [("base_1.implementations.contract", Status.UNSUPPORTED), ("numba.errors", Status.ERROR)],
)
def test_an_unsupported_error_of_the_base_is_unsupported(
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
def test_a_case_is_timed_in_turn_with_its_base_only(opened: Open, mode: Mode) -> None:
    checkout = opened({"implementation.py": LAYER_NORM}, {"implementation.py": LAYER_NORM})
    case = case_of("implementation.py:layer_norm", mode=mode)
    record = answered(TimeAgainstBase(case, (Measurement.LATENCY,), QUICK, checkout))
    assert record.status is Status.OK
    assert record.latency is not None
    assert [each.role for each in record.latency.arms] == ["subject", "reference"]
    assert record.latency.reference_ratio is not None


def test_an_exception_of_the_base_is_an_error(opened: Open) -> None:
    checkout = opened(
        {"implementation.py": "def layer_norm(*_): raise OSError('no')"},
        {"implementation.py": LAYER_NORM},
    )
    case = case_of("implementation.py:layer_norm")
    record = answered(TimeAgainstBase(case, (Measurement.LATENCY,), QUICK, checkout))
    assert (record.status, record.reason) == (Status.ERROR, "OSError: no")
    assert record.latency is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, as it loads the compiler
def test_compiled_code_is_kept_while_the_reference_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resets: list[None] = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(None))
    function_of(NATIVE, Mode.COMPILED, keep=True)
    assert not resets
    function_of(NATIVE, Mode.COMPILED)
    assert resets
