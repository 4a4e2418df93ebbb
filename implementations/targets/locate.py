"""The object that ``module:name`` or ``file.py:name`` names, imported as if run from there."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

__all__ = ["LocateError", "locate"]

_VERSION = "__layernorm_bench_version__"  # of the file that a module was executed from


class LocateError(Exception):
    """Nothing can be imported there; the message says where was looked."""


def locate(where: str) -> object:
    """Import the object at ``package.module:attribute`` or ``path/to/file.py:attribute``.

    The folder of a file, and the current directory for a module, are on the import path while it
    is imported and afterwards, as if Python had been started there. A file inside a package
    (``__init__.py`` beside it) is imported as a module of that package, so that its relative
    imports work.

    Raises:
        LocateError: it cannot be imported, or has no such attribute.
    """
    place, _, attribute = where.rpartition(":")
    try:
        module = _module_from_file(Path(place)) if place.endswith(".py") else _module(place)
    except LocateError:
        raise
    except Exception as error:  # other people's imports may raise anything
        looked = (
            f"; looked in {_looked_in(place)}" if isinstance(error, ModuleNotFoundError) else ""
        )
        raise LocateError(f"cannot import: {type(error).__name__}: {error}{looked}") from error
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise LocateError(f"{place} has no {attribute!r}{_public(module)}")
        found = getattr(found, name)
    return found


def _looked_in(place: str) -> str:
    """Name the folder of the target, and those where packages are installed."""
    own = _root_of(Path(place).resolve())[0] if place.endswith(".py") else Path.cwd()
    installed = [each for each in sys.path if Path(each).name == "site-packages"]
    return " and ".join(dict.fromkeys([str(own), *installed]))


def _root_of(path: Path) -> tuple[Path, list[str]]:
    """Return the folder that a file is imported from, and the packages between."""
    root, packages = path.parent, list[str]()
    while (root / "__init__.py").is_file():
        packages.insert(0, root.name)
        root = root.parent
    return root, packages


def _public(module: ModuleType) -> str:
    """Say which names it defines itself, if they are few."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return f"; it defines {', '.join(own)}" if 0 < len(own) <= 20 else ""


def _module(name: str) -> ModuleType:
    _put_on_path(Path.cwd())
    return importlib.import_module(name)


def _module_from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LocateError(f"cannot import: no file {path} in {Path.cwd()}")
    state = path.stat()
    return _module_from_version(path.resolve(), state.st_mtime_ns, state.st_size)


@cache
def _module_from_version(path: Path, *version: int) -> ModuleType:
    """Execute a file, once for each version of it."""
    root, packages = _root_of(path)
    _put_on_path(root)
    if not packages:
        name = f"layernorm_target_{path.stem}"
    else:
        package = ".".join(packages)
        importlib.import_module(package)
        if path.name == "__init__.py":
            return sys.modules[package]
        name = f"{package}.{path.stem}"
        # the package itself may have imported it: one module, unless the file has changed since
        loaded = sys.modules.get(name)
        if loaded is not None and getattr(loaded, _VERSION, version) == version:
            setattr(loaded, _VERSION, version)
            return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:  # only for a name that does not end in .py
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    setattr(module, _VERSION, version)
    sys.modules[spec.name] = module  # dataclasses and pickle look the module up by name
    spec.loader.exec_module(module)
    return module


def _put_on_path(folder: Path) -> None:
    """Let what lies in ``folder`` be imported, after what is installed is looked for.

    At the end of the path: a ``harness`` or ``torch`` folder there must not hide the real one.
    """
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
