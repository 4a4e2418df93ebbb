"""The code that a target reaches, and the constants in it, which drive further cases.

A mistake that shows only from some size on has that size in its source. Fuzzers take such constants
as a dictionary (AFL), and Hypothesis does so with the constants of local modules. Python functions
are read as compiled, so that ``1 << 20`` is one number; sources in other languages are split into
tokens.
"""

from __future__ import annotations

import ast
import inspect
import operator
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from harness.verify.in_scope import InScope, adapter_of
from implementations.contract import Implementation

__all__ = ["TargetCode", "code_of", "nested"]

_MOST_OBJECTS = 5_000  # that a target reaches; a larger package is read in part
_MOST_ITEMS = 100  # of a list or a dictionary; longer ones are data
_MOST_FILES = 20  # of other languages in one folder
_LONGEST_TEXT = 60  # characters; a longer one is a sentence
# a name of a narrow number in the source: the limit of its integers, as signed or not, or up to
# which it holds each one, and its largest number
_OF_8_BITS = ("int8", "uint8", "c_int8", "c_uint8", "char", "i1", "u1", "<i1", "<u1")
_OF_16_BITS = (
    "int16", "uint16", "c_int16", "c_uint16", "c_short", "short", "i2", "u2", "<i2", "<u2",
)  # fmt: skip
_NARROW = dict.fromkeys(_OF_8_BITS, (1 << 7, 1 << 8))
_NARROW |= dict.fromkeys(_OF_16_BITS, (1 << 15, 1 << 16))
_NARROW |= dict.fromkeys(("half", "float16"), (1 << 11, 65504))
_FOREIGN = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
# attributes that hold the Python function behind a wrapper: of functools, torch.compile, Triton,
# torch.library, Numba, and Implementation
_INNER = (
    "__wrapped__", "_torchdynamo_orig_callable", "fn", "_init_fn", "_backward_fn", "py_func",
    "function",
)  # fmt: skip
_REAL = r"(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?"
_NUMBER = rf"(0[xX][0-9a-fA-F]+|{_REAL})[uUlLfF]*"
_TOKEN = re.compile(rf"(?<![\w.]){_NUMBER}(?:\s*(<<|\*)\s*{_NUMBER})?(?![\w.])")
_FOLDED: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
}
_MOST_BITS = 64  # of a shift or a power
_SHIFTED = re.compile(r"(?:<<|>>)\s*(\d{1,2})\b")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(slots=True)
class TargetCode:
    """What a target consists of, as far as it can be read."""

    functions: list[FunctionType] = field(default_factory=list)
    """Python functions in the file or package of the target, the target first."""
    integers: set[int] = field(default_factory=set)
    floats: set[float] = field(default_factory=set)
    tables: dict[int, Any] = field(default_factory=dict)
    """Lists, tuples, dictionaries and texts that it names and that hold something, by id."""
    unread: set[str] = field(default_factory=set)
    """Compiled modules that it calls; torch's own are not listed."""

    @property
    def names(self) -> set[str]:
        """The names of its functions, and those that they use."""
        return {name for own in self.functions for name in (own.__name__, *own.__code__.co_names)}

    def add_source(self, source: str) -> None:
        """Add the constants of a source in C, C++, CUDA or TorchScript."""
        source = _COMMENT.sub("", source)
        for bits in map(int, _SHIFTED.findall(source)):
            self.add(1 << bits)
        for first, sign, second in _TOKEN.findall(source):
            number, other = _number(first), _number(second or "1")
            if sign == "*":
                number *= other
            elif sign and isinstance(number, int) and isinstance(other, int) and other < 64:
                number <<= other
            self.add(number)

    def add(self, number: float) -> None:
        """Add a constant; a float such as 3e5 may be a size, too."""
        if isinstance(number, float):
            self.floats.add(abs(number))
        if number == number // 1 and (isinstance(number, int) or number > 1):
            self.integers.add(abs(int(number)))


def _number(token: str) -> int | float:
    if token[:2] in {"0x", "0X"}:
        return int(token, 16)
    return int(token) if token.isdigit() else float(token)


def code_of(implementation: Implementation) -> TargetCode:
    """Return the code of a target: what it reaches by name inside its own file or package."""
    adapter = adapter_of(implementation)
    root: Any = implementation.function if adapter is None else adapter.source
    while isinstance(root, InScope):
        root = root.function
    return _Reader(root).read()


class _Reader:
    """Follows names from a target, as far as the folder of its package."""

    def __init__(self, root: object) -> None:
        self.code = TargetCode()
        self.queue = [root]
        self.seen: dict[int, object] = {}  # by id; they are kept so that no id is given twice
        self.folder = _folder_of(root)

    def read(self) -> TargetCode:
        while self.queue and len(self.seen) < _MOST_OBJECTS:
            found = self.queue.pop(0)
            if id(found) not in self.seen:
                self.seen[id(found)] = found
                self.queue += self._reached_from(found)
        folders = {Path(function.__code__.co_filename).parent for function in self.code.functions}
        for folder in folders:
            files = [path for path in sorted(folder.glob("*")) if path.suffix in _FOREIGN]
            for path in files[:_MOST_FILES]:
                self.code.add_source(path.read_text(errors="replace"))
        return self.code

    def _is_own(self, file: str | None) -> bool:
        if file is None or self.folder is None:
            return False
        path = Path(file)
        if self.folder.suffix:  # one file
            return path == self.folder
        is_inside = self.folder in path.parents
        return is_inside and "site-packages" not in path.relative_to(self.folder).parts

    def _reached_from(self, found: object) -> Iterator[object]:
        """Yield what an object refers to; add constants and functions."""
        match found:
            case bool() | None:
                return
            case int() | float():
                self.code.add(found)
            case str():
                self._read_text(found)
                self.code.tables[id(found)] = found
                yield from _NARROW.get(found, ())
            case tuple() | list() | set() | frozenset() | dict() if len(found) <= _MOST_ITEMS:
                if found:
                    self.code.tables[id(found)] = found
                yield from (type(found), *found)  # a named tuple may compute
                if isinstance(found, dict):
                    yield from found.values()
            case tuple() | list():
                yield len(found)
            case CodeType():
                yield from (_NARROW.get(name) for name in found.co_names)
                yield from found.co_consts
            case FunctionType():
                if self._is_own(found.__code__.co_filename):
                    self.code.functions.append(found)
                    yield from self._of_function(found)
                else:  # a decorator of another package, such as once_differentiable
                    yield from filter(callable, _cells(found))
            case partial():
                yield from (found.func, found.args, found.keywords)
            case staticmethod() | classmethod():
                yield found.__func__
            case property():
                yield from (found.fget, found.fset)
            case type():
                module = sys.modules.get(found.__module__)
                if self._is_own(getattr(module, "__file__", None)):
                    yield from vars(found).values()
                    yield from found.__bases__
            case torch.Tensor() if found.device.type == "cpu" and found.numel() <= _MOST_ITEMS:
                yield from found.flatten().tolist()
            case torch.jit.ScriptFunction() | torch.jit.ScriptModule():
                self.code.add_source(str(found.code))
            case ModuleType():
                file = getattr(found, "__file__", None) or ""
                package = found.__name__.partition(".")[0]
                is_known = package == "torch" or package in sys.stdlib_module_names
                if file.endswith((".so", ".pyd")) and not is_known:
                    self.code.unread.add(found.__name__)
            case _:
                yield from self._inside(found)

    def _read_text(self, text: str) -> None:
        """Add the constants of a kernel that is compiled when it is called, or of a short text.

        A table may be a text such as "1024:4 8192:16". A documentation is longer.
        """
        is_kernel = "{" in text and ";" in text
        if is_kernel or (len(text) <= _LONGEST_TEXT and "\n" not in text):
            self.code.add_source(text)

    def _of_function(self, function: FunctionType) -> Iterator[object]:
        """Yield constants, defaults, and what the names in a function stand for."""
        code = function.__code__
        yield from (code, *_cells(function))
        yield from (function.__defaults__, function.__kwdefaults__, vars(function))
        yield from _folded(function)
        names = {name for part in nested(code) for name in part.co_names}
        for name in names & function.__globals__.keys():
            value = function.__globals__[name]
            yield value
            if isinstance(value, ModuleType) and self._is_own(getattr(value, "__file__", None)):
                yield from (vars(value)[other] for other in names & vars(value).keys())

    def _inside(self, found: object) -> Iterator[object]:
        """Yield the function behind a wrapper, the method that is bound, the parts of an object."""
        for name in _INNER:
            inner = inspect.getattr_static(found, name, None)
            if callable(inner) and not isinstance(inner, property):
                yield inner
        if inspect.ismethod(found):
            yield from (found.__func__, found.__self__)
        module = sys.modules.get(type(found).__module__)
        if self._is_own(getattr(module, "__file__", None)):
            yield type(found)
            yield from _attributes(found)


def _attributes(found: object) -> Iterator[object]:
    """Yield what an object holds, in its dictionary or in slots."""
    yield from getattr(found, "__dict__", {}).values()
    for own in type(found).__mro__:
        names = own.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            yield getattr(found, name, None)


def _cells(function: FunctionType) -> Iterator[object]:
    """Yield what a function takes from those around it."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not assigned yet
            yield cell.cell_contents


def _folded(function: FunctionType) -> Iterator[int]:
    """Yield what follows from named whole numbers alone, such as ``WARPS * 32``.

    A number of bits by which another value is shifted stands for the size 1 << bits.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.BinOp):
            continue
        own = _value(node, function.__globals__)
        if own is None and isinstance(node.op, ast.LShift | ast.RShift):
            own = _value(ast.BinOp(ast.Constant(1), ast.LShift(), node.right), function.__globals__)
        if own is not None:
            yield own


def _value(node: ast.expr, known: Mapping[str, object]) -> int | None:
    """Return the value of an expression of whole numbers; None if it is another."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name) if isinstance(named := known.get(name), int):
            return named
        case ast.BinOp(left, sign, right) if fold := _FOLDED.get(type(sign)):
            first, second = _value(left, known), _value(right, known)
            is_power = isinstance(sign, ast.LShift | ast.Pow)
            if first is not None and second and not (is_power and not 0 < second < _MOST_BITS):
                return fold(first, second)
    return None


def nested(code: CodeType) -> Iterator[CodeType]:
    """Yield code, and that of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


def _folder_of(root: object) -> Path | None:
    """Return the folder of the target's package, or its file; None for what is compiled."""
    while isinstance(root, partial):
        root = root.func
    wrapped = root if isinstance(root, type | FunctionType) else _first_function(root)
    try:
        file = inspect.getsourcefile(inspect.unwrap(wrapped))  # type: ignore[arg-type]
    except (TypeError, OSError):
        return None
    if file is None:
        return None
    path = Path(file).resolve()
    folder, top = path.parent, None
    while (folder / "__init__.py").is_file():
        top, folder = folder, folder.parent
    if top is not None:
        return None if top.name == "torch" else top
    return path.parent if "site-packages" not in path.parts else path


def _first_function(root: object) -> object:
    """Return the function or class from which the file of an object follows."""
    for name in _INNER:
        inner = inspect.getattr_static(root, name, None)
        if isinstance(inner, FunctionType):
            return inner
    return getattr(root, "__func__", type(root))
