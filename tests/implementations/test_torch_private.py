"""Private names of torch: each exists or has a fallback, and one module uses them."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
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
MODULES = sorted(
    path
    for package in ("harness", "implementations", "layernorm_bench")
    for path in (ROOT / package).rglob("*.py")
    if path != FILE
)
# documented in spite of the underscore
DOCUMENTED = {"os._exit", "DispatchKey._fields", "sys._getframe", "sys._current_frames"}
# the dictionaries of torch.nn.Module, which subclasses rely on; the version counter that torch's
# notes on autograd describe; a private attribute of a pydantic model, which its own module sets
WIDELY_USED = {"_parameters", "_buffers", "_modules", "_version", "_origin"}


# --- the names -----------------------------------------------------------------------------------


NAMES = sorted(set(re.findall(r'"(torch[\w.]*:[\w.]+)"', FILE.read_text())))
ONLY_IN = {
    "torch._C:_cuda_endAllocateToPool": lambda version: version >= (2, 8),
    "torch._C:_cuda_endAllocateCurrentStreamToPool": lambda version: version < (2, 8),
}


@pytest.mark.parametrize("name", NAMES)
def test_torch_has_a_name_in_its_versions(name: str) -> None:
    if "_cuda_" in name and not torch.backends.cuda.is_built():
        pytest.skip("this torch is built without CUDA")
    major, minor = re.findall(r"\d+", torch.__version__)[:2]
    is_expected = ONLY_IN.get(name, lambda version: True)((int(major), int(minor)))
    assert (lacks(name) is None) == is_expected


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


def test_an_operator_has_a_function_and_is_called_itself_without_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    neg = torch.ops.aten.neg.default
    found = torch_private.function_of(neg)
    assert found is not neg
    assert torch.equal(found(torch.ones(2)), -torch.ones(2))
    assert without(monkeypatch, "torch._C:_get_operation_overload").function_of(neg) is neg


def test_without_a_negated_view_a_negated_copy_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2, 3)
    assert torch_private.negated_view(x).data_ptr() == x.data_ptr()
    found = without(monkeypatch, "torch:_neg_view").negated_view(x)
    assert torch.equal(found, -x)
    assert not found.is_neg()


def test_buffers_of_a_backward_are_kept_where_torch_can(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "torch._functorch.config:donated_buffer"
    assert lacks(path) is None  # it imports the module, too
    config = torch._functorch.config
    with config.patch(donated_buffer=True):  # monkeypatch would delete it in the end
        without(monkeypatch, path).keep_backward_buffers()
        assert config.donated_buffer
        torch_private.keep_backward_buffers()
        assert not config.donated_buffer


def test_the_operator_libraries_are_read_from_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "layernorm_bench::fused_forward" in torch_private.OPERATOR_LIBRARIES
    path = "torch._library.custom_ops:OPDEF_TO_LIB"
    assert without(monkeypatch, path).OPERATOR_LIBRARIES == {}


def test_without_a_spin_the_cuda_device_is_unavailable_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    monkeypatch.delattr(torch.cuda, "_sleep")
    assert f"torch {torch.__version__} has no torch.cuda._sleep" in call("list", "devices").output


def test_the_pool_of_a_failed_capture_is_left_by_whichever_name_torch_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new, old = "_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"
    for name in (new, old):
        monkeypatch.setattr(torch._C, name, lambda *_, name=name: name, raising=False)
    found = [
        without(monkeypatch, *(f"torch._C:{name}" for name in lacking)).end_allocation_to_pool(0, 0)
        for lacking in ([], [new], [new, old])
    ]
    assert found == [new, old, None]


@pytest.mark.parametrize("path", [name for name in NAMES if "valgrind" in name])
def test_without_a_callgrind_name_no_instructions_are_counted(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(torch._C, "_valgrind_supported_platform", lambda: True)
    assert without(monkeypatch).can_count_instructions()
    assert not without(monkeypatch, path).can_count_instructions()


# --- and nowhere else ----------------------------------------------------------------------------


def private_names(source: str) -> Iterator[str]:
    """Yield the private names that belong to other modules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner not in {"self", "cls"} and not is_private(owner.rpartition(".")[2]):
                yield f"{owner}.{node.attr}"
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if is_private_path(alias.name))
        if isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if is_private_path(name))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_private_path(path: str) -> bool:
    return path.startswith("torch.") and any(map(is_private, path.split(".")))


def test_no_other_module_uses_private_names_of_other_modules() -> None:
    assert len(MODULES) > 100
    used = {
        (path.name, name)
        for path in MODULES
        for name in set(private_names(path.read_text())) - DOCUMENTED
        if name.rpartition(".")[2] not in WIDELY_USED
    }
    assert used == set()


def test_private_names_of_others_are_found() -> None:
    source = """
torch._C._get_tracing_state() or x._is_zerotensor()
import torch._functorch.config
from torch import _neg_view
import torch; self._kept, cls._kept, x.__dict__
"""
    names = {"torch._C", "x._is_zerotensor", "torch._functorch.config", "torch._neg_view"}
    assert set(private_names(source)) == names
