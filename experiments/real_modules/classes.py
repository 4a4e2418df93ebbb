"""The classes of installed packages with "Norm" in their name, one entry per distinct source.

The source files are parsed, not imported: a file that needs a missing dependency is still listed.
transformers repeats one RMSNorm in many files, so classes are grouped by their source without
names, annotations and docstrings.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

__all__ = ["Group", "Place", "find_classes", "group_classes", "requirements"]

_MENTIONS = re.compile(r"^\s*class \w*norm", re.IGNORECASE | re.MULTILINE)
# layers that transform features: a class that builds one is a block, not a normalisation
_LAYERS = ("Conv", "Linear", "Sequential", "Embedding", "Attention", "MLP", "Mlp", "ModuleList")
# of a wrapper around another module, such as PreNorm(dim, fn)
_WRAPPED = {"fn", "fns", "sublayer", "block", "module", "model"}
# folders whose classes nobody uses as layers
_SKIPPED_FOLDERS = {"test", "tests", "testing", "benchmark", "benchmarks", "examples"}
# superclasses that are no layers
_NO_LAYERS = ("Transform", "Normalizer", "Processor", "Tokenizer", "Loss", "Config", "Output")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """Where a class is defined."""

    distribution: str
    version: str
    module: str
    name: str
    line: int

    @property
    def target(self) -> str:
        """As the command line of layernorm-bench takes it."""
        return f"{self.module}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Classes with the same source."""

    key: str
    """The first 10 hexadecimal digits of the SHA-256 of the normalised source."""
    kind: str
    """"layer", "function" (a torch.autograd.Function) or "block" (it contains other layers)."""
    places: tuple[Place, ...]

    @property
    def copies(self) -> int:
        return len(self.places)


def requirements(path: Path) -> list[str]:
    """Return the names of the distributions in a requirements file."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line.partition("==")[0].strip() for line in lines if line and line[0] != "-"]


def find_classes(names: Iterable[str], folder: Path | None = None) -> list[tuple[Place, str, str]]:
    """Return each class of the named distributions: its place, its kind and its key.

    Args:
        names: of distributions; one that is not installed is left out, and said so.
        folder: where they lie, if not where Python looks.
    """
    found = []
    for name in names:
        try:
            package = distribution(name) if folder is None else _in(folder, name)
        except PackageNotFoundError:
            print(f"not installed: {name}", file=sys.stderr)  # noqa: T201 - an experiment's log
            continue
        for file in package.files or ():
            if file.suffix != ".py" or _is_skipped(file.parts):
                continue
            source = Path(str(package.locate_file(file))).read_text(errors="replace")
            if not _MENTIONS.search(source):  # parsing every file would take minutes
                continue
            module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
            found += [
                (
                    Place(
                        distribution=package.name,
                        version=package.version,
                        module=module,
                        name=node.name,
                        line=node.lineno,
                    ),
                    _kind(node),
                    _key(node),
                )
                for node in _norm_classes(source)
            ]
    return found


def group_classes(found: Iterable[tuple[Place, str, str]]) -> list[Group]:
    """Put classes with the same key together, the most copied first."""
    by_key: dict[str, tuple[str, list[Place]]] = {}
    for place, kind, key in found:
        by_key.setdefault(key, (kind, []))[1].append(place)
    groups = [
        Group(key=key, kind=kind, places=tuple(sorted(places, key=_preference)))
        for key, (kind, places) in by_key.items()
    ]
    return sorted(groups, key=lambda group: (-group.copies, group.places[0]))


def _in(folder: Path, name: str) -> Distribution:
    for installed in Distribution.discover(path=[str(folder)]):
        if installed.name.replace("_", "-").lower() == name:
            return installed
    raise PackageNotFoundError(name)


def _is_skipped(parts: tuple[str, ...]) -> bool:
    # transformers generates modeling_x.py from modular_x.py: the same classes twice
    return parts[-1].startswith("modular_") or bool(_SKIPPED_FOLDERS & set(parts))


def _preference(place: Place) -> tuple[bool, Place]:
    """Name the original first: prototypes and vendored copies of other packages come last."""
    return any(word in place.module for word in ("prototype", "vendored", "test")), place


def _norm_classes(source: str) -> Iterator[ast.ClassDef]:
    """Yield the classes at the top level of a module, or below its ``if`` and ``try``."""
    try:
        pending: list[ast.stmt] = list(ast.parse(source).body)
    except SyntaxError:  # a template
        return
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.ClassDef):
            if "norm" in node.name.lower() and _may_be_layer(node):
                yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            pending += node.body
            pending += getattr(node, "orelse", [])
            for handler in getattr(node, "handlers", ()):
                pending += handler.body


def _may_be_layer(node: ast.ClassDef) -> bool:
    bases = [ast.unparse(base) for base in node.bases]
    if not bases or any(base.endswith(_NO_LAYERS) for base in bases):
        return False
    own = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    return "forward" in own or any("norm" in b.lower() or "Module" in b for b in bases)


def _kind(node: ast.ClassDef) -> str:
    if any(ast.unparse(base).endswith("Function") for base in node.bases):
        return "function"
    calls = [ast.unparse(item.func) for item in ast.walk(node) if isinstance(item, ast.Call)]
    init = next((i for i in node.body if getattr(i, "name", "") == "__init__"), None)
    taken = (
        {argument.arg for argument in init.args.args}
        if isinstance(init, ast.FunctionDef)
        else set()
    )
    builds = any(call.split(".")[-1].startswith(_LAYERS) for call in calls)
    return "block" if builds or taken & _WRAPPED else "layer"


class _Normalise(ast.NodeTransformer):
    """Removes what does not change what a class computes."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        if node.name in {"extra_repr", "__repr__", "_get_name"}:
            return None
        self.generic_visit(node)
        node.returns = None
        _without_docstring(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.decorator_list = []
        _without_docstring(node)
        declared = (isinstance(item, ast.AnnAssign) and item.value is None for item in node.body)
        node.body = [item for item, is_bare in zip(node.body, declared, strict=True) if not is_bare]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) == "super":  # super(Name, self) is super()
            node.args = []
        return node


def _without_docstring(node: ast.FunctionDef | ast.ClassDef) -> None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        node.body = node.body[1:]
    node.body = node.body or [ast.Pass()]


def _key(node: ast.ClassDef) -> str:
    bases = ",".join(ast.unparse(base).split(".")[-1] for base in node.bases)
    plain = _Normalise().visit(node)
    text = bases + "\n" + "\n".join(ast.unparse(item) for item in plain.body)
    text = text.replace(node.name, "NAME").replace("torch.nn.", "nn.")
    return hashlib.sha256(text.encode()).hexdigest()[:10]
