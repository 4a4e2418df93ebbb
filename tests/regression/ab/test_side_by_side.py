"""Modules of two revisions in one process: each imports its own, and other modules are shared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from factories.git_repository import LAYER_NORM
from factories.two_revisions import Open

import implementations
from harness.regression.revision import Checkout
from harness.regression.side_by_side import side_by_side

PACKAGE = """
def said():
    return "{when}"
"""


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
    texts = [OPERATORS.replace("{space}", space).replace("{number}", number) for number in "12"]
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
    refused = "registers the operator layernorm_bench_test_one::said over"
    with pytest.raises(implementations.TargetError, match=refused):
        side_by_side(checkout).find("implementation.py:f")
