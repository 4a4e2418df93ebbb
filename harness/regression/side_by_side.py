"""Import another revision's modules side by side with those of this revision, in one process.

The other revision's modules are in a package of their own, whose finder takes them from the
revision's files, so neither revision imports the other's modules. This needs changes of names in
the source, made as it is compiled: absolute imports of the repository's modules become imports
from that package, and torch operators that the repository registers get their own namespace. The
code is not wrapped and takes as long as before.

A module that registers an operator over one of this revision, or that imports another module of the
repository, by a name or path built at run time, is refused: both revisions would share it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import entry_points
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import implementations
from harness.regression.revision import Checkout
from implementations import torch_private
from implementations.contract import Algorithm, Implementation, Reduction
from implementations.native import native

# the first is the same in every process, so that what a revision builds with it is built once
_NUMBERS = count(1)
_OF_THE_HARNESS = ("harness", "implementations")  # what imports the revision
_REDUCTIONS = ("reduction", "backward_reduction", "column_reduction")
_DECLARED = {"algorithm": Algorithm, **dict.fromkeys(_REDUCTIONS, Reduction)}


class AbsentError(implementations.TargetError):
    """The revision has no such target, or none that this revision can compare."""


# --- the import of a revision --------------------------------------------------------------------


@cache
def side_by_side(checkout: Checkout) -> SideBySideImport:
    """Return the import of a checkout; one per process, since torch registers operators once."""
    return SideBySideImport(checkout)


class SideBySideImport(MetaPathFinder):
    """Finds the modules of a checkout, under a package of their own, and the targets in them."""

    def __init__(self, checkout: Checkout) -> None:
        self._checkout = checkout
        self._suffix = f"base_{next(_NUMBERS)}"
        self.package = f"layernorm_bench_{self._suffix}"
        """Package that the modules of the repository are imported from."""
        self._folders = cache(self._folders_of)
        package = ModuleType(self.package, "Modules of another revision.")
        package.__path__ = []
        sys.modules[self.package] = package
        sys.meta_path.insert(0, self)

    def _listed(self) -> Sequence[Implementation]:
        """Return the implementations of the revision's package; their class is the revision's own.

        Raises:
            TargetError: the revision has no package, or it cannot be imported.
        """
        name = implementations.__name__
        try:
            package = self._module(name)
        except AbsentError:
            raise implementations.TargetError(f"it has no package {name!r}") from None
        return (*getattr(package, "ALL", ()), *getattr(package, "PEERS", ()))

    def find(self, target: str) -> Implementation:
        """Return a target of the revision, found by the rules of ``implementations.find``.

        Raises:
            AbsentError: the revision has no such target, or one that declares what this revision
                does not know.
            TargetError: it cannot be imported, or is no LayerNorm.
        """
        name, colon, attribute = target.rpartition(":")
        if not colon:
            for member in self._listed():
                if member.name == target:
                    return _as_implementation(member, target)
            plugins = [*entry_points(group=implementations.ENTRY_POINT_GROUP, name=target)]
            if not plugins:
                raise AbsentError(f"no implementation named {target!r}")
            name, _, attribute = plugins[-1].value.rpartition(":")
        module = self._file(Path(name)) if name.endswith(".py") else self._module(name)
        if not hasattr(module, attribute):
            raise AbsentError(f"{name} has no {attribute!r}")
        return _as_implementation(getattr(module, attribute), target)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the package; called by the import system."""
        package, _, name = fullname.rpartition(".")
        if package == self.package:
            path = self._folders(name)
        elif not fullname.startswith(self.package + "."):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.name, spec.loader.path, self)
        return spec

    def _module(self, name: str) -> ModuleType:
        top = name.partition(".")[0]
        if not self._folders(top):
            where = self._checkout.repository
            raise implementations.TargetError(f"module {top!r} is not in the repository {where}")
        moved = f"{self.package}.{name}"
        if moved in sys.modules:  # to import it again would look at every module of the process
            return sys.modules[moved]
        with self._importing(name):
            try:
                return importlib.import_module(moved)
            except ModuleNotFoundError as error:
                if not _is_missing(moved, error):
                    raise
        raise AbsentError(f"no module {name!r}")

    def _file(self, path: Path) -> ModuleType:
        file = self._checkout.path_of(path)
        if file is None:
            where = self._checkout.repository
            raise implementations.TargetError(f"{path} is not in the repository {where}")
        if not file.is_file():
            raise AbsentError(f"no file {file.relative_to(self._checkout.folder)}")
        name = f"{self.package}.file_{sha256(bytes(file)).hexdigest()[:8]}_{file.stem}"
        if name not in sys.modules:
            loader = Loader(name, str(file), self)
            spec = importlib.util.spec_from_file_location(name, file, loader=loader)
            assert spec is not None  # it has a loader
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module  # dataclasses and pickle look the module up by name
            with self._importing(str(path)):
                loader.exec_module(module)
        return sys.modules[name]

    def _folders_of(self, top: str) -> list[str]:
        """Return the checkout's folders that may hold a top-level module; [] if it is installed."""
        if top in sys.stdlib_module_names:
            return []
        if folders := _folders_here(top):
            return self._in_checkout(folders)
        # only the other revision may have it: look wherever Python looks in the repository
        possible = self._in_checkout(map(Path, sys.path))
        return possible if PathFinder.find_spec(top, possible) else []

    def is_own(self, top: str) -> bool:
        """Whether a top-level module is in the repository."""
        return bool(self._folders(top))

    def operators_of(self, namespace: str) -> str:
        """Return the namespace to use for the torch operators of a namespace."""
        is_own = namespace in self._checkout.operators
        return f"{namespace}_{self._suffix}" if is_own else namespace

    def is_module(self, name: str) -> bool:
        """Whether a dotted name is that of a module or package of the repository."""
        parts = name.split(".")
        if not all(map(str.isidentifier, parts)):
            return False
        paths = [Path(folder, *parts) for folder in self._folders(parts[0])]
        return any(path.is_dir() or path.with_suffix(".py").is_file() for path in paths)

    @contextmanager
    def _importing(self, what: str) -> Iterator[None]:
        """Turn a failure of the import within into a refusal.

        Raises:
            TargetError: the import failed, replaced an operator of this revision, or imported a
                module that this revision would share.
        """
        before, modules = dict(torch_private.OPERATOR_LIBRARIES), set(sys.modules)
        of_this_revision = self._take_plain_modules()
        try:
            yield
        except Exception as error:  # another revision's import may raise anything
            for name in set(sys.modules) - modules:
                if name.startswith(self.package):  # half imported: must not be found again
                    del sys.modules[name]
            raise implementations.TargetError(
                f"{what}: cannot import: {type(error).__name__}: {error}"
            ) from error
        finally:
            shared = self._take_plain_modules()
            sys.modules.update(of_this_revision)
        now = torch_private.OPERATOR_LIBRARIES
        taken = [name for name, library in before.items() if now.get(name) is not library]
        if taken:
            raise implementations.TargetError(
                f"{what} registers the operator {taken[0]} over this revision's, by a name built "
                "at run time: write the name as a literal, so that each revision gets its own"
            )
        if shared:
            raise implementations.TargetError(
                f"{what} imports {next(iter(shared))}, of which both revisions would share one, by "
                "a name or path built at run time: import it by its name, from a folder that "
                "Python searches"
            )

    def _take_plain_modules(self) -> dict[str, ModuleType]:
        """Remove and return the modules of the repository, in either revision, by usual names."""
        return {
            name: sys.modules.pop(name)
            for name, module in [*sys.modules.items()]
            if name.partition(".")[0] not in {self.package, "__main__", *_OF_THE_HARNESS}
            and self._is_in_repository(getattr(module, "__file__", None))
        }

    def _is_in_repository(self, file: str | None) -> bool:
        if file is None:
            return False
        is_other = Path(file).is_relative_to(self._checkout.folder)
        return is_other or self._checkout.path_of(Path(file)) is not None

    def _in_checkout(self, folders: Iterable[Path]) -> list[str]:
        return [str(there) for path in folders if (there := self._checkout.path_of(path))]


def _folders_here(top: str) -> list[Path]:
    """Return the folders in which this revision finds a module or package."""
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module without a spec, such as __main__
        return []
    if spec is None:
        return []
    file = [spec.origin] if spec.has_location and spec.origin else []
    return [Path(path).parent for path in spec.submodule_search_locations or file]


def _is_missing(module: str, error: ModuleNotFoundError) -> bool:
    """Whether ``module`` or its package was not found, rather than a module that it imports."""
    return error.name is not None and f"{module}.".startswith(f"{error.name}.")


def _as_implementation(declared: object, target: str) -> Implementation:
    """Return a target of the revision as an implementation of this revision's class.

    Raises:
        AbsentError: it declares what this revision does not know.
        TargetError: it is no LayerNorm.
    """
    if isinstance(declared, Implementation) or type(declared).__name__ != Implementation.__name__:
        return implementations.adopt(declared, target)
    values = {
        field.name: getattr(declared, field.name)
        for field in fields(Implementation)
        if hasattr(declared, field.name)
    }
    for name, kind in _DECLARED.items():
        if values.get(name) is None:
            continue
        value = getattr(values[name], "value", values[name])
        try:
            values[name] = kind(value)
        except ValueError:
            raise AbsentError(
                f"{target}: the base declares the {name} {value!r}, for which this revision has "
                "no error bound"
            ) from None
    return replace(native, **values)


# --- names in the source -------------------------------------------------------------------------


class Loader(SourceFileLoader):
    """Loads a module of a revision, whose source is compiled with other names."""

    def __init__(self, name: str, path: str, revision: SideBySideImport) -> None:
        super().__init__(name, path)
        self._revision = revision

    def source_to_code(  # type: ignore[override] # the import system passes bytes
        self, data: bytes, path: str, **more: Any
    ) -> CodeType:
        renamed = ast.fix_missing_locations(_Renaming(self._revision).visit(ast.parse(data)))
        code: CodeType = super().source_to_code(renamed, path, **more)
        return code


class _Renaming(ast.NodeTransformer):
    def __init__(self, revision: SideBySideImport) -> None:
        self._revision = revision

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        imports: list[ast.stmt] = []
        for alias in node.names:
            top = alias.name.partition(".")[0]
            if not self._revision.is_own(top):
                imports.append(ast.Import([alias]))
                continue
            moved = f"{self._revision.package}.{alias.name}"
            if alias.asname or "." in alias.name:
                imports.append(ast.Import([ast.alias(moved, alias.asname)]))
            if not alias.asname:  # `import a.b` binds a
                imports.append(ast.Import([ast.alias(f"{self._revision.package}.{top}", top)]))
        return [ast.copy_location(statement, node) for statement in imports]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if not node.level and self._revision.is_own((node.module or "").partition(".")[0]):
            node.module = f"{self._revision.package}.{node.module}"
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            space, colons, name = node.value.partition("::")
            if colons:
                node.value = f"{self._revision.operators_of(space)}::{name}"
            elif "." in node.value and self._revision.is_module(node.value.removesuffix(".")):
                node.value = f"{self._revision.package}.{node.value}"
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        owner = node.value
        if isinstance(owner, ast.Attribute) and owner.attr == "ops":
            node.attr = self._revision.operators_of(node.attr)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = getattr(node.func, "attr", getattr(node.func, "id", None))
        for literal in node.args:
            if not (isinstance(literal, ast.Constant) and isinstance(literal.value, str)):
                continue
            if called == "Library" and literal is node.args[0]:
                literal.value = self._revision.operators_of(literal.value)
            # the argument of import_module is a module even without a dot
            is_module = called == "import_module" and literal.value.isidentifier()
            if is_module and self._revision.is_own(literal.value):
                literal.value = f"{self._revision.package}.{literal.value}"
        return self.generic_visit(node)
