"""Modules of another revision, imported beside those of this one, in one process.

They live in a package of their own, whose finder takes them from the revision's files, so that
neither revision meets the other's modules. For that the source is changed as it is compiled, in
names alone: absolute imports of what the repository holds become imports from that package, and
torch operators that the repository registers get a namespace of their own, since torch has one for
all. What runs is not wrapped and costs what it costs.

An operator that is registered over one of this revision, by a name that is made at run time, is
refused.
"""

from __future__ import annotations

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
from pathlib import Path
from types import ModuleType

import implementations
from harness.regression.ab.import_rewriting import Loader, Names
from harness.regression.ab.revision import Checkout
from implementations.contract import Algorithm, Implementation, Reduction
from implementations.native import native
from implementations.torch_private import OPERATOR_LIBRARIES

__all__ = ["AbsentError", "IncomparableError", "SideBySideImport", "is_missing", "side_by_side"]

_DECLARED = {
    "algorithm": Algorithm,
    "reduction": Reduction,
    "backward_reduction": Reduction,
    "column_reduction": Reduction,
}


class AbsentError(implementations.TargetError):
    """There is no such thing."""


class IncomparableError(implementations.TargetError):
    """It is there, and declares what this revision knows nothing of."""


@cache
def side_by_side(checkout: Checkout) -> SideBySideImport:
    """Return the modules of a checkout, the same whenever asked: torch registers them once."""
    return SideBySideImport(checkout)


class SideBySideImport(MetaPathFinder):
    """The modules of a checkout, and what finds them; it serves its own package alone."""

    def __init__(self, checkout: Checkout) -> None:
        self._checkout = checkout
        mark = "base_" + sha256(bytes(checkout.folder)).hexdigest()[:8]
        self._package = f"layernorm_bench_{mark}"
        self._folders = cache(self._folders_of)
        self._names = Names(
            package=self._package,
            is_ours=lambda top: bool(self._folders(top)),
            is_module=self._is_module,
            operators=checkout.operators,
            mark=mark,
        )
        package = ModuleType(self._package, "Modules of another revision.")
        package.__path__ = []
        sys.modules[self._package] = package
        sys.meta_path.insert(0, self)

    def names(self, listing: str) -> tuple[str, ...]:
        """Return the names of what the revision's package lists, as ``"ALL"``.

        Raises:
            TargetError: it has no package, or one that cannot be imported.
        """
        return tuple(each.name for each in self._listed(listing))

    def find(self, target: str) -> Implementation:
        """Return what a target names in the revision, by the rules of ``implementations.find``.

        Raises:
            TargetError: it is not there, cannot be imported, or cannot be taken for one of this
                revision's.
        """
        place, colon, attribute = target.rpartition(":")
        if not colon:
            for each in (*self._listed("ALL"), *self._listed("PEERS")):
                if each.name == target:
                    return _as_of_now(each, target)
            plugins = {
                each.name: each for each in entry_points(group=implementations.ENTRY_POINT_GROUP)
            }
            if target not in plugins:
                raise AbsentError(f"no implementation named {target!r}")
            place, _, attribute = plugins[target].value.rpartition(":")
        module = self._file(Path(place)) if place.endswith(".py") else self._module(place)
        if not hasattr(module, attribute):
            raise AbsentError(f"{place} has no {attribute!r}")
        return _as_of_now(getattr(module, attribute), target)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the package, as the import system asks."""
        package, _, name = fullname.rpartition(".")
        if package == self._package:
            path = self._folders(name)
        elif not fullname.startswith(self._package + "."):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.name, spec.loader.path, self._names)
        return spec

    def _listed(self, listing: str) -> Sequence[Implementation]:
        """What the revision's package lists, which is not of our class; nothing if it does not."""
        name = implementations.__name__
        try:
            found: Sequence[Implementation] = getattr(self._module(name), listing, ())
        except AbsentError:
            raise implementations.TargetError(f"it has no package {name!r}") from None
        return found

    def _module(self, name: str) -> ModuleType:
        top = name.partition(".")[0]
        if not self._folders(top):
            where = self._checkout.repository
            raise implementations.TargetError(f"module {top!r} is not of the repository {where}")
        moved = f"{self._package}.{name}"
        with _importing(name, self._package):
            try:
                return importlib.import_module(moved)
            except ModuleNotFoundError as error:
                if not is_missing(moved, error):
                    raise
        raise AbsentError(f"no module {name!r}")

    def _file(self, path: Path) -> ModuleType:
        there = self._checkout.path_of(path)
        if there is None:
            where = self._checkout.repository
            raise implementations.TargetError(f"{path} is not of the repository {where}")
        if not there.is_file():
            raise AbsentError(f"no file {there.relative_to(self._checkout.folder)}")
        name = f"{self._package}.file_{sha256(bytes(there)).hexdigest()[:8]}_{there.stem}"
        if name not in sys.modules:
            loader = Loader(name, str(there), self._names)
            spec = importlib.util.spec_from_file_location(name, there, loader=loader)
            assert spec is not None  # there is a loader
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module  # dataclasses and pickle look the module up by name
            with _importing(str(path), self._package):
                loader.exec_module(module)
        return sys.modules[name]

    def _folders_of(self, top: str) -> list[str]:
        """Folders of the checkout to look for a top-level module in; none if it is another's."""
        if top in sys.stdlib_module_names:
            return []
        if found := _places(top):
            return self._there(found)
        # in the other revision alone, if at all: wherever modules of the repository may lie
        folders = self._there(map(Path, sys.path))
        return folders if PathFinder.find_spec(top, folders) else []

    def _is_module(self, name: str) -> bool:
        parts = name.split(".")
        if not all(map(str.isidentifier, parts)):
            return False
        paths = [Path(each, *parts) for each in self._folders(parts[0])]
        return any(path.is_dir() or path.with_suffix(".py").is_file() for path in paths)

    def _there(self, places: Iterable[Path]) -> list[str]:
        return [str(folder) for each in places if (folder := self._checkout.path_of(each))]


def _places(top: str) -> list[Path]:
    """Folders in which this revision finds a module or package."""
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # of a module without a spec, such as __main__
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(each).parent for each in spec.submodule_search_locations]
    return [Path(spec.origin).parent] if spec.has_location and spec.origin else []


def is_missing(module: str, error: ModuleNotFoundError) -> bool:
    """Whether it is ``module`` or its package that was not found, not a module it imports."""
    return error.name is not None and f"{module}.".startswith(f"{error.name}.")


@contextmanager
def _importing(what: str, package: str) -> Iterator[None]:
    """Import within: whatever is raised, or done to another's operators, is said as it is.

    Raises:
        TargetError: the import failed.
    """
    before, modules = dict(OPERATOR_LIBRARIES), set(sys.modules)
    try:
        yield
    except Exception as error:  # another revision's import may raise anything
        for name in set(sys.modules) - modules:
            if name.startswith(package):  # half imported, it must not be found again
                del sys.modules[name]
        raise implementations.TargetError(
            f"{what}: cannot import: {type(error).__name__}: {error}"
        ) from error
    taken = [
        name for name, library in before.items() if OPERATOR_LIBRARIES.get(name) is not library
    ]
    if taken:
        raise implementations.TargetError(
            f"{what} registers the operator {taken[0]} over this revision's, by a name made at run "
            "time: write the name out, so that both can have their own"
        )


def _as_of_now(found: object, target: str) -> Implementation:
    """Return what was found as an implementation of this revision's class.

    Raises:
        TargetError: it declares what is not known now, or is none.
    """
    if isinstance(found, Implementation) or type(found).__name__ != Implementation.__name__:
        return implementations.adopt(found, target)
    values = {
        each.name: getattr(found, each.name)
        for each in fields(Implementation)
        if hasattr(found, each.name)
    }
    for name, kind in _DECLARED.items():
        if values.get(name) is None:
            continue
        value = getattr(values[name], "value", values[name])
        try:
            values[name] = kind(value)
        except ValueError:
            raise IncomparableError(
                f"{target}: the base declares the {name} {value!r}, of which this revision knows "
                "no bound"
            ) from None
    return replace(native, **values)
