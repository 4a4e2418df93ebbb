"""Modules of two revisions in one process: each imports its own, and other modules are shared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
import torch
from factories.git_repository import LAYER_NORM, Repository

import implementations
from harness.measure.environment import compiler
from harness.records import Allocation, Budget, Case, Measurement, Mode, Record, Status
from harness.regression.ab import BASE, missing_in_base, run_base_case, time_against_base
from harness.regression.revision import Checkout, checked_out
from harness.regression.side_by_side import Loader, side_by_side
from harness.run.call import function_of
from harness.run.case import CaseRunner
from harness.run.fleet import Job
from implementations.contract import Algorithm, Implementation

NATIVE = implementations.find("native")
FILE = "implementation.py"
TARGET = f"{FILE}:layer_norm"
Files = dict[str, str]
Open = Callable[..., Checkout]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Return a function that commits some files, changes them, and checks the commit out."""
    known, finders, repository = set(sys.modules), list(sys.meta_path), tmp_path / "repository"

    with ExitStack() as checkouts:

        def make(before: Files, now: Files | None = None) -> Checkout:
            made = Repository.at(repository, before)
            monkeypatch.chdir(repository)
            monkeypatch.syspath_prepend(repository)
            if now is not None:
                for name in before.keys() - now.keys():
                    (repository / name).unlink()
                made.write(now)
            return checkouts.enter_context(checked_out(repository.resolve(), "HEAD"))

        yield make
    sys.meta_path[:] = finders
    for name in set(sys.modules) - known:
        if name.startswith(("mine", "other", "implementation", "lacks", "layernorm_")):
            del sys.modules[name]


def both(checkout: Checkout, target: str) -> tuple[object, object]:
    """Return the result of a target's function, in the base and now."""
    arguments = (torch.zeros(1), (1,))
    base, here = side_by_side(checkout).find(target), implementations.find(target)
    return base.function(*arguments), here.function(*arguments)


def dated(files: Files) -> tuple[Files, Files]:
    """Return files in which {when} is "before", and "now"."""
    before, now = (
        {name: text.replace("{when}", when) for name, text in files.items()}
        for when in ("before", "now")
    )
    return before, now


WORDS = "def said():\n    return '{when}'\n"
SAYS = "\n\ndef f(*arguments):\n    return said()\n"


# --- imports -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "from mine.words import said",
        "from mine import words\nsaid = words.said",
        "import mine.words\nsaid = mine.words.said",
        "import mine.words, os\nsaid = lambda: mine.words.said() if os.sep else None",
        "from other import said",
        "class _C:\n    from mine.words import said as _said\nsaid = _C._said",
        "import importlib\nsaid = importlib.import_module('mine.words').said",
        "from importlib import import_module\nsaid = import_module(f'mine.{\"words\"}').said",
        "from importlib import import_module\nname = 'mine.words'\nsaid = import_module(name).said",
        "import sys, mine.words\nsaid = sys.modules['mine.words'].said",
        "from importlib import import_module\nsaid = import_module('.words', 'mine').said",
    ],
)
def test_each_revision_imports_its_own(opened: Open, text: str) -> None:
    files = {"mine/__init__.py": "", "mine/words.py": WORDS, FILE: text + SAYS}
    checkout = opened(*dated(files | {"other.py": "from mine.words import said"}))
    assert both(checkout, "implementation.py:f") == ("before", "now")
    assert both(checkout, "implementation:f") == ("before", "now")


def test_relative_imports_and_cycles_work_in_each_revision(opened: Open) -> None:
    files = {
        "mine/__init__.py": "from .words import said\nfrom .implementation import f",
        "mine/words.py": f"import mine\n{WORDS}",
        "mine/implementation.py": f"from . import words\nsaid = words.said{SAYS}",
    }
    checkout = opened(*dated(files))
    assert both(checkout, "mine:f") == ("before", "now")
    assert both(checkout, "mine.implementation:f") == ("before", "now")


@pytest.mark.parametrize(
    "name", ["json", "torch", "load('json')", "load(f'js{\"on\"}')", "load(NAME)"]
)
def test_modules_from_outside_the_repository_are_shared(opened: Open, name: str) -> None:
    text = "import json, torch\nfrom importlib import import_module as load\nNAME = 'json.decoder'"
    checkout = opened({FILE: f"{text}\ndef f(*arguments):\n    return {name}"})
    then, now = both(checkout, "implementation.py:f")
    assert then is now


def test_a_package_installed_inside_the_repository_is_shared(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {FILE: "import other\ndef f(*arguments):\n    return other"}
    environment = ".venv/lib/python3/site-packages"
    checkout = opened(files, {**files, f"{environment}/other.py": ""})
    monkeypatch.syspath_prepend(Path(environment).resolve())
    then, now = both(checkout, "implementation.py:f")
    assert then is now is sys.modules["other"]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (
            {"mine.py": "def said(): return 'before'", FILE: f"from mine import said{SAYS}"},
            {FILE: f"def said(): return 'now'{SAYS}"},
        ),
        (
            {FILE: f"try: from other import said\nexcept ImportError: said = 'before'.strip{SAYS}"},
            {FILE: f"from other import said{SAYS}", "src/other.py": "def said(): return 'now'"},
        ),
    ],
    ids=["deleted", "in a new folder"],
)
def test_a_module_of_one_revision_is_not_in_the_other(
    opened: Open, monkeypatch: pytest.MonkeyPatch, before: Files, now: Files
) -> None:
    checkout = opened(before, now)
    monkeypatch.syspath_prepend(Path("src").resolve())
    assert both(checkout, "implementation.py:f") == ("before", "now")


def test_files_of_one_name_are_different_modules(opened: Open) -> None:
    known = {name: module for name, module in sys.modules.items() if name.startswith("implement")}
    checkout = opened({"a/ln.py": "def f(*_): return 'a'", "b/ln.py": "def f(*_): return 'b'"})
    assert both(checkout, "a/ln.py:f") == ("a", "a")
    assert both(checkout, "b/ln.py:f") == ("b", "b")
    assert {name: sys.modules[name] for name in known} == known


# --- operators -----------------------------------------------------------------------------------

ONE_OPERATOR = """
import torch

SPACE = "{space}"

@torch.library.custom_op("{space}::said", mutates_args=())
def _said(x: torch.Tensor) -> torch.Tensor:
    return x + {number}

def f(x, *arguments):
    return _said(x).item(), torch.ops.{space}.again(x).item()
"""
OPERATORS = f"""{ONE_OPERATOR}
library = torch.library.Library("{{space}}", "FRAGMENT")
library.define("again(Tensor x) -> Tensor")
library.impl("again", lambda x: x + 10 * {{number}}, "CompositeExplicitAutograd")
"""


def revisions(text: str, space: str) -> tuple[Files, Files]:
    before, now = (text.replace("{space}", space).replace("{number}", number) for number in "12")
    return {FILE: before}, {FILE: now}


def test_operators_of_one_name_are_each_revisions_own(opened: Open) -> None:
    checkout = opened(*revisions(OPERATORS, "layernorm_bench_test_both"))
    assert both(checkout, "implementation.py:f") == ((1, 10), (2, 20))
    assert both(checkout, "implementation.py:f") == ((1, 10), (2, 20))


def test_an_operator_that_would_replace_another_is_refused(opened: Open) -> None:
    text = ONE_OPERATOR.replace('("{space}::said"', '(SPACE + "::said"')
    checkout = opened(*revisions(text, "layernorm_bench_test_one"))
    implementations.find("implementation.py:f")
    refused = "registers the operator layernorm_bench_test_one::said over"
    with pytest.raises(implementations.TargetError, match=refused):
        side_by_side(checkout).find("implementation.py:f")


# --- names in the source -------------------------------------------------------------------------

REVISION: Any = SimpleNamespace(
    package="theirs",
    is_own=lambda top: top in {"implementations", "kernels"},
    is_module=lambda name: name in {"kernels.ln", "kernels"},
    operators_of=lambda namespace: f"{namespace}_then" if namespace == "ours" else namespace,
)
SUBJECTS = sorted((Path(__file__).parents[2] / "implementations").rglob("*.py"))


def renamed(source: str) -> CodeType:
    return Loader("implementation", FILE, REVISION).source_to_code(source.encode(), FILE)


def functions(code: CodeType) -> Iterator[CodeType]:
    """Everything that is defined in some code, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from functions(constant)


@pytest.mark.parametrize("path", SUBJECTS, ids=lambda path: path.name)
def test_a_function_of_another_revision_is_the_same_instructions(path: Path) -> None:
    source = path.read_text()
    before = [function.co_code for function in functions(compile(source, path, "exec"))]
    assert [function.co_code for function in functions(renamed(source))] == before


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import implementations", {"theirs.implementations", "implementations"}),
        ("import kernels.ln as k", {"theirs.kernels.ln", "kernels", "ln", "k"}),
        ("from kernels.ln import f", {"theirs.kernels.ln", "f"}),
        ("from . import f", {"", "f"}),
        ("import torch.nn", {"torch.nn", "torch"}),
        ("from torch import nn", {"torch", "nn"}),
        ("torch.ops.ours.f", {"torch", "ops", "ours_then", "f"}),
        ("torch.ops.aten.f", {"torch", "ops", "aten", "f"}),
        ("ours.f", {"ours", "f"}),
        # strings that name own modules or operators
        ("x = 'ours::f'", {"x", "ours_then::f"}),
        ("x = 'aten::f'", {"x", "aten::f"}),
        ("Library('ours', 'ours')", {"Library", "ours_then", "ours"}),
        ("word('ours')", {"word", "ours"}),
        ("x = 'kernels.ln'", {"x", "theirs.kernels.ln"}),
        ("x = 'kernels.rs'", {"x", "kernels.rs"}),
        ("x = 'kernels'", {"x", "kernels"}),
        ("import_module('kernels')", {"import_module", "theirs.kernels"}),
        ("import_module('torch')", {"import_module", "torch"}),
        ("f'kernels.{x}'", {"x", "theirs.kernels."}),
    ],
)
def test_only_names_of_own_modules_and_operators_are_changed(source: str, names: set[str]) -> None:
    code = renamed(source)
    strings = {one for one in code.co_consts if isinstance(one, str)}
    assert {*code.co_names} | strings == names


def test_lines_stay_where_they_are() -> None:
    source = "import kernels.ln, os\n\ndef f():\n    import kernels\n    return 1 / 0\n"
    (found,) = functions(renamed(source))
    assert {line for _, _, line in found.co_lines()} == {3, 4, 5}


# --- what the base declares, and what it lacks ---------------------------------------------------

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
BASE_FILES = {
    FILE: LAYER_NORM,
    "contract.py": CONTRACT,
    "broken.py": "1 / 0",
    "lacks.py": "import no_such_thing",
    "typo.py": "def f(:",
    "mine/__init__.py": "",
}
LACKS, BROKEN = 0, 1


def test_the_declaration_of_an_older_class_is_converted(opened: Open) -> None:
    found = side_by_side(opened(BASE_FILES)).find("contract.py:mine")
    assert type(found) is Implementation
    assert found == replace(NATIVE, name="f", algorithm=Algorithm.ONE_PASS, function=found.function)


def test_a_plain_function_declares_nothing(opened: Open) -> None:
    found = side_by_side(opened(BASE_FILES)).find(TARGET)
    expected = replace(NATIVE, name=TARGET, source=TARGET, declared=False)
    assert found == replace(expected, function=found.function)


@pytest.mark.parametrize(
    ("target", "kind", "reason"),
    [
        ("implementation.py:gone", LACKS, "implementation.py has no 'gone'"),
        ("gone.py:f", LACKS, "no file gone.py"),
        ("mine.gone:f", LACKS, "no module 'mine.gone'"),
        ("contract.py:unknown", LACKS, "the base declares the algorithm 'kahan'"),
        ("broken.py:f", BROKEN, "cannot import: ZeroDivisionError: division by zero"),
        ("lacks:f", BROKEN, "lacks: cannot import: ModuleNotFoundError: No module named"),
        ("typo.py:f", BROKEN, "cannot import: SyntaxError"),
        ("implementation.py:torch", BROKEN, "is of type module, not a function"),
        ("json:dumps", BROKEN, "json"),  # it is of no repository
        ("/etc/ln.py:f", BROKEN, "/etc/ln.py is not in the repository"),
        ("native", BROKEN, "module 'implementations' is not in the repository"),
    ],
)
def test_what_the_base_lacks_is_told_from_what_it_cannot_import(
    opened: Open, target: str, kind: int, reason: str
) -> None:
    targets = (target, TARGET, "implementation:layer_norm")
    runner = CaseRunner("here", Allocation.DEFAULT)
    found = missing_in_base(runner, (opened(BASE_FILES), targets))
    assert [[*part] for part in found] == [[target] * (kind == one) for one in (LACKS, BROKEN)]
    assert reason in found[kind][target]


# --- cases ---------------------------------------------------------------------------------------


def run(
    function: Callable[[CaseRunner, Job], Record],
    checkout: Checkout,
    *measurements: Measurement,
    target: str = TARGET,
    mode: Mode = Mode.EAGER,
) -> Record:
    quick = Budget(min_epochs=1, max_epochs=1, limit_s=0.1)
    case = Case(implementation=target, shape=(8, 32), mode=mode)
    job = Job(case, measurements, quick, function=function, options=checkout)
    return function(CaseRunner("here", Allocation.DEFAULT), job)


@pytest.mark.parametrize(
    ("where", "status"),
    [("base_1.implementations.contract", Status.UNSUPPORTED), ("numba.errors", Status.ERROR)],
)
def test_an_unsupported_error_of_the_base_is_unsupported(
    opened: Open, where: str, status: Status
) -> None:
    text = CONTRACT.replace("(Exception):\n", f"(Exception):\n    __module__ = {where!r}\n")
    record = run(run_base_case, opened({FILE: text}, {}), target=f"{BASE}{FILE}:f")
    assert (record.status, record.reason.endswith("not on a Sunday")) == (status, True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, as it loads the compiler
@pytest.mark.parametrize("mode", Mode)
def test_a_case_is_timed_in_turn_with_its_base_only(opened: Open, mode: Mode) -> None:
    if mode is Mode.COMPILED and compiler() is None:
        pytest.skip("there is no C++ compiler")
    record = run(time_against_base, opened(BASE_FILES), Measurement.LATENCY, mode=mode)
    assert record.status is Status.OK
    assert record.latency is not None
    assert [arm.role for arm in record.latency.arms] == ["subject", "reference"]
    assert record.latency.reference_ratio is not None


def test_an_exception_of_the_base_is_an_error(opened: Open) -> None:
    base = {FILE: "def layer_norm(*_): raise OSError('no')"}
    record = run(time_against_base, opened(base, BASE_FILES), Measurement.LATENCY)
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
