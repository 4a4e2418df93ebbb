"""Compile a module's source with other names for its imports and its torch operators.

Only names that are written in the source are changed, so the code takes as long as before. A name
that is built at run time is changed only if a literal in it ends in a dot, as ``"package."`` does.
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
    """Which names are changed, and how. "Own" modules are those in the revision's repository."""

    package: str
    """Package that own modules are imported from instead."""
    is_own: Callable[[str], bool]
    """Whether a top-level module is an own one."""
    is_module: Callable[[str], bool]
    """Whether a dotted name is that of an own module or package."""
    operators: frozenset[str]
    """Namespaces of the torch operators that own modules register."""
    suffix: str
    """Appended to these namespaces."""


class Loader(SourceFileLoader):
    """Loads a module whose source is compiled with other names."""

    def __init__(self, name: str, path: str, names: Names) -> None:
        super().__init__(name, path)
        self._names = names

    def source_to_code(  # type: ignore[override] # the import system passes bytes
        self, data: bytes, path: str, **more: Any
    ) -> CodeType:
        renamed = ast.fix_missing_locations(_Renaming(self._names).visit(ast.parse(data)))
        code: CodeType = super().source_to_code(renamed, path, **more)
        return code


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: Names) -> None:
        self._names = names

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        imports: list[ast.stmt] = []
        for each in node.names:
            top = each.name.partition(".")[0]
            if not self._names.is_own(top):
                imports.append(ast.Import([each]))
                continue
            moved = f"{self._names.package}.{each.name}"
            if each.asname or "." in each.name:
                imports.append(ast.Import([ast.alias(moved, each.asname)]))
            if not each.asname:  # `import a.b` binds a
                imports.append(ast.Import([ast.alias(f"{self._names.package}.{top}", top)]))
        return [ast.copy_location(each, node) for each in imports]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if not node.level and self._names.is_own((node.module or "").partition(".")[0]):
            node.module = f"{self._names.package}.{node.module}"
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            space, colons, name = node.value.partition("::")
            if colons and space in self._names.operators:
                node.value = f"{space}_{self._names.suffix}::{name}"
            elif "." in node.value and self._names.is_module(node.value.removesuffix(".")):
                node.value = f"{self._names.package}.{node.value}"
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        owner = node.value
        is_of_ops = isinstance(owner, ast.Attribute) and owner.attr == "ops"
        if is_of_ops and node.attr in self._names.operators:
            node.attr = f"{node.attr}_{self._names.suffix}"
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else None
        called = node.func.id if isinstance(node.func, ast.Name) else called
        if called == "Library" and node.args:
            space = node.args[0]
            if isinstance(space, ast.Constant) and space.value in self._names.operators:
                space.value = f"{space.value}_{self._names.suffix}"
        if called == "import_module":  # its argument is a module even without a dot
            for each in node.args:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    each.value = self._module_name(each.value)
        return self.generic_visit(node)

    def _module_name(self, name: str) -> str:
        is_own = name.isidentifier() and self._names.is_own(name)
        return f"{self._names.package}.{name}" if is_own else name
