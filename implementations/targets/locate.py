"""Import the object that ``module:name`` or ``file.py:name`` names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

_VERSION = "__layernorm_bench_version__"  # of the file from which a module was executed


class LocateError(Exception):
    """The object cannot be imported; the message names the places that were searched."""


def locate(where: str) -> object:
    """Import the object at ``package.module:attribute`` or ``path/to/file.py:attribute``.

    The folder of a file, or the current directory for a module, is added to the import path, as if
    Python had been started there. A file next to an ``__init__.py`` is imported as a module of that
    package, so that its relative imports work.

    Raises:
        LocateError: it cannot be imported, or has no such attribute.
    """
    source, _, attribute = where.rpartition(":")
    try:
        module = _module_from_file(Path(source)) if source.endswith(".py") else _module(source)
    except LocateError:
        raise
    except Exception as error:  # foreign code may raise anything
        is_missing = isinstance(error, ModuleNotFoundError)
        searched = f"; looked in {_searched_for(source)}" if is_missing else ""
        raise LocateError(f"cannot import: {type(error).__name__}: {error}{searched}") from error
    value: object = module
    for name in attribute.split("."):
        if not hasattr(value, name):
            raise LocateError(f"{source} has no {attribute!r}{_public(module)}")
        value = getattr(value, name)
    return value


def _searched_for(source: str) -> str:
    """Return the folder of the target, and those of installed packages."""
    own = _root_of(Path(source).resolve())[0] if source.endswith(".py") else Path.cwd()
    installed = [folder for folder in sys.path if Path(folder).name == "site-packages"]
    return " and ".join(dict.fromkeys([str(own), *installed]))


def _root_of(path: Path) -> tuple[Path, list[str]]:
    """Return the folder from which a file is imported, and the packages between both."""
    root, packages = path.parent, list[str]()
    while (root / "__init__.py").is_file():
        packages.insert(0, root.name)
        root = root.parent
    return root, packages


def _public(module: ModuleType) -> str:
    """Return a message with the public names that a module defines, if they are few."""
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
    """Execute a file, once per version."""
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
        # if the package has imported it already, use that module, unless the file has changed
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
    """Append ``folder`` to the import path.

    At its end, because a ``harness`` or ``torch`` folder there must not hide the installed one.
    """
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
