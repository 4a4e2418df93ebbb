"""Private names of torch: each exists or has a fallback, and one module uses them."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from factories.commanding import call

from implementations import torch_private
from implementations.torch_private import lacks

ROOT = Path(__file__).parents[2]
FILE = ROOT / "implementations" / "torch_private.py"
# a torch built without CUDA lacks those of CUDA
NAMES = sorted(set(re.findall(r'"(torch[\w.]*:(?!_cuda_)[\w.]+)"', FILE.read_text())))


@pytest.mark.parametrize("name", NAMES)
def test_torch_has_the_name(name: str) -> None:
    assert lacks(name) is None


def test_missing_names_are_listed_with_the_version_of_torch() -> None:
    found = lacks("torch:_neg_view", "torch:_no_such_name", "torch._no_such_module:name")
    assert found == (
        f"torch {torch.__version__} has no torch._no_such_name, torch._no_such_module.name"
    )


# --- what happens without ------------------------------------------------------------------------


def without(monkeypatch: pytest.MonkeyPatch, *paths: str) -> Any:
    """Execute the module as if torch lacked these names."""
    resolve = pkgutil.resolve_name

    def found(path: str) -> object:
        if path in paths:
            raise AttributeError(path)
        return resolve(path)

    monkeypatch.setattr(pkgutil, "resolve_name", found)
    return SimpleNamespace(**run_path(str(FILE)))


def test_buffers_of_a_backward_are_kept_where_torch_can(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "torch._functorch.config:donated_buffer"
    assert lacks(path) is None  # it imports the module, too
    config = torch._functorch.config
    with config.patch(donated_buffer=True):  # monkeypatch would delete it in the end
        without(monkeypatch, path).keep_backward_buffers()
        assert config.donated_buffer
        torch_private.keep_backward_buffers()
        assert not config.donated_buffer


def test_without_a_spin_the_cuda_device_is_unavailable_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    monkeypatch.delattr(torch.cuda, "_sleep")
    assert f"torch {torch.__version__} has no torch.cuda._sleep" in call("list", "devices").output


@pytest.mark.parametrize("path", [name for name in NAMES if "valgrind" in name])
def test_without_a_callgrind_name_no_instructions_are_counted(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(torch._C, "_valgrind_supported_platform", lambda: True)
    assert without(monkeypatch).can_count_instructions()
    assert not without(monkeypatch, path).can_count_instructions()


# --- and nowhere else ----------------------------------------------------------------------------


def test_no_other_module_uses_private_names_of_torch() -> None:
    private = re.compile(r"\btorch(?:\.\w+)*(?:\.| import )_[a-zA-Z]")
    users = {
        path.relative_to(ROOT).as_posix()
        for package in ("harness", "implementations", "layernorm_bench")
        for path in (ROOT / package).rglob("*.py")
        if private.search(path.read_text())
    }
    # the docstring of the second names one
    assert users == {"implementations/torch_private.py", "implementations/cpu/compiling.py"}
