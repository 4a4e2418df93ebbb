"""A module's source, given other names as it is compiled: of what it imports, and of operators.

Names alone are changed, and as they are written, so that what runs costs what it did. A name that
is put together at run time from less than ``"package."`` stays what it was.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

__all__ = ["Loader", "Names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Which names become which."""

    package: str
    """Package that modules of ours are imported from."""
    is_ours: Callable[[str], bool]
    """Of a top-level module."""
    is_module: Callable[[str], bool]
    """Of a dotted name: whether there is such a module or package of ours."""
    operators: frozenset[str]
    """Namespaces of torch operators that are ours."""
    mark: str
    """What is added to them."""


class Loader(SourceFileLoader):
    """Compiles a module's source under other names."""

    def __init__(self, name: str, path: str, names: Names) -> None:
        super().__init__(name, path)
        self._names = names

    def source_to_code(  # type: ignore[override] # what the import system gives is bytes
        self, data: bytes, path: str, **more: Any
    ) -> CodeType:
        renamed = ast.fix_missing_locations(_Renaming(self._names).visit(ast.parse(data)))
        code: CodeType = super().source_to_code(renamed, path, **more)
        return code


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: Names) -> None:
        self._names = names

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for each in node.names:
            top = each.name.partition(".")[0]
            if not self._names.is_ours(top):
                found.append(ast.Import([each]))
                continue
            moved = f"{self._names.package}.{each.name}"
            if each.asname or "." in each.name:
                found.append(ast.Import([ast.alias(moved, each.asname)]))
            if not each.asname:  # what is bound is the first name
                found.append(ast.Import([ast.alias(f"{self._names.package}.{top}", top)]))
        return [ast.copy_location(each, node) for each in found]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if not node.level and self._names.is_ours((node.module or "").partition(".")[0]):
            node.module = f"{self._names.package}.{node.module}"
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            space, colons, name = node.value.partition("::")
            if colons and space in self._names.operators:
                node.value = f"{space}_{self._names.mark}::{name}"
            elif "." in node.value and self._names.is_module(node.value.removesuffix(".")):
                node.value = f"{self._names.package}.{node.value}"
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        owner = node.value
        is_of_ops = isinstance(owner, ast.Attribute) and owner.attr == "ops"
        if is_of_ops and node.attr in self._names.operators:
            node.attr = f"{node.attr}_{self._names.mark}"
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else None
        called = node.func.id if isinstance(node.func, ast.Name) else called
        if called == "Library" and node.args:
            space = node.args[0]
            if isinstance(space, ast.Constant) and space.value in self._names.operators:
                space.value = f"{space.value}_{self._names.mark}"
        if called == "import_module":  # where a name without a dot is one of a module
            for each in node.args:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    each.value = self._imported(each.value)
        return self.generic_visit(node)

    def _imported(self, name: str) -> str:
        is_ours = name.isidentifier() and self._names.is_ours(name)
        return f"{self._names.package}.{name}" if is_ours else name
