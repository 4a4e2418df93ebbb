"""The files of another revision are checked out, and its modules imported beside those of now."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from factories.fake_device import LocalFleet
from factories.git_repository import LAYER_NORM, Repository

import implementations
from harness.records import Budget, Case, Record, Refusal, Status
from harness.regression import (
    Bench,
    Checkout,
    checked_out,
    file_of,
    is_unchanged,
    missing_in_base,
    repository_of,
)
from harness.regression.side_by_side import SideBySideImport
from implementations import Algorithm, Implementation

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
            made.write(now or {})
            return checkouts.enter_context(checked_out(repository.resolve(), "HEAD"))

        yield make
    sys.meta_path[:] = finders
    for name in set(sys.modules) - known:
        if name.startswith(("mine", "other", "implementation", "lacks", "layernorm_")):
            del sys.modules[name]


def both(checkout: Checkout, *targets: str) -> list[tuple[object, object]]:
    """Return the results of the functions of targets, each in the base and now."""
    base, arguments = SideBySideImport(checkout), (torch.zeros(1), (1,))
    return [
        (base.find(target).function(*arguments), implementations.find(target).function(*arguments))
        for target in targets
    ]


def dated(files: Files) -> tuple[Files, Files]:
    """Return files in which {when} is "before", and "now"."""
    now = {name: text.replace("{when}", "now") for name, text in files.items()}
    return {name: text.replace("{when}", "before") for name, text in files.items()}, now


WORDS = "def said():\n    return '{when}'\n"
SAYS = "\n\ndef f(*arguments):\n    return said()\n"
EACH_ITS_OWN = [("before", "now")]


# --- imports -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "import mine.words\nsaid = mine.words.said",
        "from other import said",
        "from importlib import import_module\nname = 'mine.words'\nsaid = import_module(name).said",
        "import sys, mine.words\nsaid = sys.modules['mine.words'].said",
        "from importlib import import_module\nsaid = import_module('.words', 'mine').said",
    ],
)
def test_each_revision_imports_its_own(opened: Open, text: str) -> None:
    files = {"mine/__init__.py": "", "mine/words.py": WORDS, FILE: text + SAYS}
    checkout = opened(*dated(files | {"other.py": "from mine.words import said"}))
    assert both(checkout, "implementation.py:f", "implementation:f") == EACH_ITS_OWN * 2


def test_relative_imports_and_cycles_work_in_each_revision(opened: Open) -> None:
    files = {
        "mine/__init__.py": "from .words import said\nfrom .implementation import f",
        "mine/words.py": f"import mine\n{WORDS}",
        "mine/implementation.py": f"from . import words\nsaid = words.said{SAYS}",
    }
    assert both(opened(*dated(files)), "mine:f", "mine.implementation:f") == EACH_ITS_OWN * 2


@pytest.mark.parametrize("name", ["json", "load('json')", "other"])
def test_modules_from_outside_the_repository_are_shared(
    opened: Open, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text = "import json\nfrom importlib import import_module as load"
    files = {FILE: f"{text}\ndef f(*arguments):\n    import other\n    return {name}"}
    # another package is installed in an environment inside the repository
    environment = ".venv/lib/python3/site-packages"
    checkout = opened(files, {**files, f"{environment}/other.py": ""})
    monkeypatch.syspath_prepend(Path(environment).resolve())
    ((then, now),) = both(checkout, "implementation.py:f")
    assert then is now


def test_files_of_one_name_are_different_modules(opened: Open) -> None:
    checkout = opened({"a/ln.py": "def f(*_): return 'a'", "b/ln.py": "def f(*_): return 'b'"})
    assert both(checkout, "a/ln.py:f", "b/ln.py:f") == [("a", "a"), ("b", "b")]


# --- operators -----------------------------------------------------------------------------------

OPERATORS = """
import torch

SPACE = "{space}"
library = torch.library.Library("{space}", "FRAGMENT")
library.define("again(Tensor x) -> Tensor")
library.impl("again", lambda x: x + 10 * {number}, "CompositeExplicitAutograd")

@torch.library.custom_op("{space}::said", mutates_args=())
def _said(x: torch.Tensor) -> torch.Tensor:
    return x + {number}

def f(x, *arguments):
    return _said(x).item(), torch.ops.{space}.again(x).item()
"""


def revisions(text: str, space: str) -> tuple[Files, Files]:
    before, now = (text.replace("{space}", space).replace("{number}", number) for number in "12")
    return {FILE: before}, {FILE: now}


def test_operators_of_one_name_are_each_revisions_own(opened: Open) -> None:
    checkout = opened(*revisions(OPERATORS, "layernorm_bench_test_both"))
    assert both(checkout, *["implementation.py:f"] * 2) == [((1, 10), (2, 20))] * 2


SHARED = (
    'import importlib\nfactor = importlib.import_module("mine" + "_helper").factor\n',
    "import os, sys\nsys.path.insert(0, os.path.dirname(__file__) + '/lib')\nimport other_helper\n",
)


@pytest.mark.parametrize("is_base_first", [True, False])
@pytest.mark.parametrize("text", SHARED)
def test_a_module_that_both_revisions_would_share_is_refused(
    opened: Open, monkeypatch: pytest.MonkeyPatch, text: str, is_base_first: bool
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    helpers = {"mine_helper.py": "factor = 1\n", "lib/other_helper.py": ""}
    checkout = opened({FILE: text + LAYER_NORM, **helpers})
    if not is_base_first:
        implementations.find(TARGET)
    if is_base_first or "mine" in text:
        with pytest.raises(implementations.TargetError, match="of which both revisions would"):
            SideBySideImport(checkout).find(TARGET)
    else:  # the path is known by then, and each revision gets its own
        SideBySideImport(checkout).find(TARGET)


def test_an_operator_that_would_replace_another_is_refused(opened: Open) -> None:
    text = OPERATORS.replace('("{space}::said"', '(SPACE + "::said"')
    checkout = opened(*revisions(text, "layernorm_bench_test_one"))
    implementations.find("implementation.py:f")
    refused = "registers the operator layernorm_bench_test_one::said over"
    with pytest.raises(implementations.TargetError, match=refused):
        SideBySideImport(checkout).find("implementation.py:f")


# --- names in the source -------------------------------------------------------------------------

NAMES = {
    "import kernels.ln as k": {"THEIRS.kernels.ln", "kernels", "ln"},
    "from kernels.ln import f": {"THEIRS.kernels.ln", "f"},
    "torch.ops.ours.f": {"torch", "ops", "ours_THEN", "f"},
    "torch.ops.aten.f": {"torch", "ops", "aten", "f"},
    # strings that name own modules or operators
    "return 'ours::f'": {"ours_THEN::f"},
    "return 'kernels.ln'": {"THEIRS.kernels.ln"},
    "f'kernels.{1 + x}'": {"x", "THEIRS.kernels."},
}


def test_only_names_of_own_modules_and_operators_are_changed(opened: Open) -> None:
    functions = (f"def f{number}(*_):\n    {source}\n" for number, source in enumerate(NAMES))
    files = {FILE: "\n".join(functions), "kernels/__init__.py": "", "kernels/ln.py": ""}
    base = SideBySideImport(replace(opened(files), operators=frozenset({"ours"})))
    suffix = base.package.removeprefix("layernorm_bench_")  # of its operators
    for number, names in enumerate(NAMES.values()):
        code = base.find(f"{FILE}:f{number}").function.__code__
        words = {*code.co_names, *(word for word in code.co_consts if isinstance(word, str))}
        found = {word.replace(base.package, "THEIRS").replace(suffix, "THEN") for word in words}
        assert found == names


def test_a_function_of_another_revision_is_the_same_instructions_at_the_same_lines(
    opened: Open,
) -> None:
    files = {FILE: f"import kernels.ln, os\n{LAYER_NORM}", "kernels/ln.py": ""}
    base, here = SideBySideImport(opened(files)).find(TARGET), implementations.find(TARGET)
    first, second = (one.function.__code__ for one in (base, here))
    assert first.co_code == second.co_code
    assert [*first.co_lines()] == [*second.co_lines()]


# --- what the base declares, and what it lacks ---------------------------------------------------

CONTRACT = """
from dataclasses import dataclass
from enum import Enum

Algorithm = Enum("Algorithm", {"ONE_PASS": "one_pass", "KAHAN": "kahan"})

class UnsupportedError(Exception):
    pass

@dataclass(frozen=True)
class Implementation:
    name: str
    function: object
    algorithm: Algorithm

def f(x, *arguments):
    raise UnsupportedError("not on a Sunday")

mine = Implementation("f", f, Algorithm.ONE_PASS)
unknown = Implementation("f", f, Algorithm.KAHAN)
"""
BASE_FILES = {FILE: LAYER_NORM, "contract.py": CONTRACT, "broken.py": "1 / 0"}
LACKS, BROKEN = 0, 1


def test_an_older_class_is_converted_and_a_plain_function_declares_nothing(opened: Open) -> None:
    base = SideBySideImport(opened(BASE_FILES))
    found = base.find("contract.py:mine")
    assert type(found) is Implementation
    assert found == replace(NATIVE, name="f", algorithm=Algorithm.ONE_PASS, function=found.function)
    plain = base.find(TARGET)
    expected = replace(NATIVE, name=TARGET, source=TARGET, declared=False)
    assert plain == replace(expected, function=plain.function)


@pytest.mark.parametrize(
    ("target", "kind", "reason"),
    [
        ("implementation.py:gone", LACKS, "implementation.py has no 'gone'"),
        ("contract.py:unknown", LACKS, "the base declares the algorithm 'kahan'"),
        ("broken.py:f", BROKEN, "cannot import: ZeroDivisionError: division by zero"),
        ("/etc/ln.py:f", BROKEN, "/etc/ln.py is not in the repository"),
    ],
)
def test_what_the_base_lacks_is_told_from_what_it_cannot_import(
    opened: Open, target: str, kind: int, reason: str
) -> None:
    targets = (target, TARGET, "implementation:layer_norm")
    found = LocalFleet().call(missing_in_base, (opened(BASE_FILES), targets), 1.0)
    assert [[*part] for part in found] == [[target] * (kind == one) for one in (LACKS, BROKEN)]
    assert reason in found[kind][target]


# --- cases ---------------------------------------------------------------------------------------

QUICK = Budget(min_epochs=1, max_epochs=1, limit_s=0.1)


def run(checkout: Checkout, target: str = TARGET) -> list[Record]:
    """Return the records of a case of the base, and of the case timed in turn with its base."""
    fleet = LocalFleet()
    bench = Bench(fleet=fleet, make_fleet=LocalFleet, checkout=checkout, timeout_s=60)  # type: ignore[arg-type]
    case = Case(implementation=target, shape=(8, 32))
    return [*bench.run([bench.base_job(case, ()), bench.in_turn(case, 2, QUICK)])]


def test_an_unsupported_error_of_the_base_is_unsupported(opened: Open) -> None:
    where = "base_1.implementations.contract"
    text = CONTRACT.replace("(Exception):\n", f"(Exception):\n    __module__ = {where!r}\n")
    record, _ = run(opened({FILE: text}), f"{FILE}:f")
    assert (record.status, record.reason.endswith("not on a Sunday")) == (Status.UNSUPPORTED, True)


def test_a_case_is_timed_in_turn_with_its_base_only(opened: Open) -> None:
    _, record = run(opened(BASE_FILES))
    assert [arm.role for arm in record.latency.arms] == ["subject", "reference"]
    assert record.latency.reference_ratio is not None


# --- the checkout --------------------------------------------------------------------------------

REGISTERED = """
@torch.library.custom_op("mine::one", mutates_args=())
two = torch.library.triton_op(
    "yours::two", one, mutates_args=()
)
library = torch.library.Library("theirs", "DEF")
torch.library.define("fourth::four", "(Tensor x) -> Tensor")
torch.ops.not_ours.five()
"""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.at(tmp_path / "repository", {"ln.py": "old", "deep/er/x.py": "also old"})


def test_the_files_of_a_revision_have_the_same_relative_paths(repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.git("branch", "branch/of-mine")
    repository.write({"ln.py": "new", "only_now.py": ""})
    repository.commit()
    with checked_out(repository.path, "branch/of-mine") as found:
        assert found.commit == first
        assert found.path_of(repository.path / "ln.py") == found.folder / "ln.py"
        assert (found.folder / "ln.py").read_text() == "old"
        assert (found.folder / "deep/er/x.py").read_text() == "also old"
        assert not (found.folder / "only_now.py").exists()


def test_a_checkout_inside_a_hook_runs_no_hook_and_leaves_nothing_behind(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = repository.path / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {repository.path}/hook-ran\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    before = sorted(repository.path.rglob("*"))
    with checked_out(repository.path, "HEAD") as found:
        assert (found.folder / "ln.py").exists()
    assert not found.folder.parent.exists()
    assert sorted(repository.path.rglob("*")) == before


@pytest.mark.parametrize("revision", ["gone", "HEAD^{tree}", "--help"])
def test_a_revision_that_is_not_a_commit_is_refused(repository: Repository, revision: str) -> None:
    with pytest.raises(Refusal, match="has no such commit"):
        checked_out(repository.path, revision).__enter__()


def test_a_file_that_git_does_not_keep_has_no_revision(
    repository: Repository, tmp_path: Path
) -> None:
    repository.write({".gitignore": "venv/\n", "venv/ln.py": ""})
    with pytest.raises(Refusal, match=r"ln.py is in no git repository \(.*not a git repo"):
        repository_of(tmp_path / "ln.py", "ln.py:f")
    with pytest.raises(Refusal, match="git ignores it"):
        repository_of(repository.path / "venv/ln.py", "ln.py:f")


def test_a_file_is_found_without_importing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "falls_here.py").write_text("raise RuntimeError")
    (folder / "space_here").mkdir()
    monkeypatch.syspath_prepend(folder)
    here, package = folder.resolve(), Path(implementations.__file__ or "")
    found = {
        "falls_here:f": here / "falls_here.py",
        "space_here.deeper:f": here / "space_here",
        "no_such_module_here:f": None,
        "native": package.resolve(),
    }
    assert {target: file_of(target) for target in found} == found


def test_a_working_copy_is_unchanged_without_changes_and_new_files(repository: Repository) -> None:
    with checked_out(repository.path, "HEAD") as found:
        assert is_unchanged(found)
        repository.write({"new.py": ""})
        assert not is_unchanged(found)
        os.remove(repository.path / "new.py")
        repository.write({"ln.py": "new"})
        assert not is_unchanged(found)
        repository.commit()
        assert not is_unchanged(found)


def test_operators_registered_by_a_literal_name_are_found(repository: Repository) -> None:
    repository.write({"ops.py": REGISTERED})
    repository.commit()
    with checked_out(repository.path, "HEAD") as found:
        assert found.operators == {"mine", "yours", "theirs", "fourth"}
