"""Which conditions of a target were decided both ways, and how one that was not can be turned.

The functions of a target get code in which every comparison and truth test reports its operands
and its outcome, as CmpLog of AFL++ does. This code runs in additional calls alone: calls that are
judged or timed run the target's own. An operand that follows the size of the input (the
input-to-state correspondence of Redqueen, NDSS 2019) tells which size turns the comparison.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar

import torch

from harness.cases.axes import AXES
from harness.records import Case

__all__ = ["Change", "Decision", "Decisions"]

_COMPARE, _TRUTH = "__layernorm_bench_compare__", "__layernorm_bench_truth__"
Compare = Callable[[Any, Any], Any]

_OPERATORS: dict[type[ast.cmpop], Compare] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items, ast.NotIn: lambda item, items: item not in items,
}  # fmt: skip
_KEPT = 40  # observations of a comparison: enough to see which size an operand follows
_STEPS = (0, 1, -1)  # from the size at which a comparison turns
# what no case on one device, outside of compilers, can turn
_OF_RUN = re.compile(r"is_(scripting|tracing|compiling|dynamo_compiling|cuda|xpu|mps|meta)|device")
# what a comparison may be with: its value in a case; the axes that can be set are sizes and eps
_FACTS: dict[str, Callable[[Case], float]] = {
    name: AXES[name].get for name in ("hidden", "rows", "elements", "leading_axes", "eps")
}

Node = TypeVar("Node", bound=ast.AST)
Change = tuple[str, float]
"""An axis, and a value that it is to have in a case."""


@dataclass(slots=True, eq=False)
class Decision:
    """A comparison or a truth test, and the outcomes that it had."""

    text: str
    line: int
    file: str
    is_guard: bool
    """Whether one outcome does nothing but raise."""
    outcomes: set[bool] = field(default_factory=set)
    operands: list[tuple[float, float, Case]] = field(default_factory=list)
    """Numbers that were compared, of different cases."""
    led_by: Change | None = None
    """The change of a case that first led to it; None if a case of the catalogue did."""

    @property
    def is_open(self) -> bool:
        """Whether it had one outcome alone, and a case on this device might give it the other."""
        return len(self.outcomes) == 1 and not self.is_guard and not _OF_RUN.search(self.text)

    @property
    def never(self) -> str:
        """The outcome that it did not have: "true" or "false"."""
        return "false" if True in self.outcomes else "true"

    def turns(self) -> Iterator[Change]:
        """Yield changes of a case that may give it the other outcome."""
        # with several normalized axes, the last one and N differ
        plain = [own for own in self.operands if own[2].normalized_dims == 1] or self.operands
        lefts = [(left, case) for left, _, case in plain]
        rights = [(right, case) for _, right, case in plain]
        for own, others in ((lefts, rights), (rights, lefts)):
            limits = {value for value, _ in others}
            if len(limits) == 1:
                yield from _changes(own, limits.pop())


def _changes(observed: list[tuple[float, Case]], limit: float) -> Iterator[Change]:
    """Yield the sizes at which an operand that follows a size reaches ``limit``."""
    for name, fact in _FACTS.items():
        points = sorted((fact(case), value) for value, case in observed)
        values = [value for _, value in points]
        is_same = all(value == own for own, value in points)
        is_growing = values == sorted(values) and len({*values}) > 2
        if not (is_same or is_growing) or not points[-1][1]:
            continue
        at = limit * points[-1][0] / points[-1][1]
        if name == "eps":
            yield from ((name, at * factor) for factor in (1.0, 2.0, 0.5))
        elif isfinite(at):
            yield from ((name, round(at) + step) for step in (*_STEPS, round(at) // 2))


class Decisions:
    """The conditions in functions of a target."""

    def __init__(self, functions: Iterable[FunctionType]) -> None:
        self.all: list[Decision] = []
        self._codes: list[tuple[FunctionType, CodeType]] = []
        self._pending: list[tuple[Decision, bool, Any, Any]] = []
        for function in functions:
            if (found := _reporting(function)) is not None:
                code, decisions = found
                self._codes.append((function, code))
                self.all += decisions

    @property
    def open(self) -> list[Decision]:
        """Those with one outcome alone, in the order of the source."""
        return [decision for decision in self.all if decision.is_open]

    @property
    def are_settled(self) -> bool:
        """Whether a further call can show nothing new."""
        return all(own.is_guard or len(own.outcomes) == 2 for own in self.all)

    def observe(self, case: Case, call: Callable[[], object], change: Change | None = None) -> bool:
        """Run a call with the code that reports; return whether a decision had a new outcome.

        What a call decided counts if it succeeds.

        Args:
            case: that is called.
            call: runs it.
            change: that made the case, if it follows from the source.
        """
        if not self._codes:
            return False
        with self._installed():
            call()
        is_new = False
        for decision, outcome, left, right in self._pending:
            is_new |= outcome not in decision.outcomes
            if not decision.outcomes:
                decision.led_by = change
            decision.outcomes.add(outcome)
            if left is not None and len(decision.operands) < _KEPT:
                known = {(own[0], own[1]) for own in decision.operands}
                if (left, right) not in known:
                    decision.operands.append((left, right, case))
        return is_new

    @contextmanager
    def _installed(self) -> Iterator[None]:
        self._pending.clear()
        reports = {_COMPARE: self._compare, _TRUTH: self._truth}
        before = [(function, function.__code__) for function, _ in self._codes]
        for function, code in self._codes:
            function.__globals__.update(reports)
            function.__code__ = code
        try:
            yield
        finally:
            for function, own in before:
                function.__code__ = own
                for name in reports:
                    function.__globals__.pop(name, None)

    def _compare(
        self, decision: Decision, compare: Callable[[Any, Any], Any], a: Any, b: Any
    ) -> Any:
        outcome = compare(a, b)
        if isinstance(a, int | float) and isinstance(b, int | float):
            self._pending.append((decision, bool(outcome), a, b))
        else:
            self._add(decision, outcome)
        return outcome

    def _truth(self, decision: Decision, value: Any) -> Any:
        self._add(decision, value)
        return value

    def _add(self, decision: Decision, value: Any) -> None:
        with suppress(Exception):  # a truth value that is none, as of a tensor of several elements
            outcomes = {bool(value)} if not isinstance(value, torch.Tensor) else _outcomes(value)
            self._pending += [(decision, outcome, None, None) for outcome in outcomes]


def _outcomes(value: torch.Tensor) -> set[bool]:
    """Return whether elements are true, and whether elements are false."""
    is_true = value.detach().bool()
    return {True} & {bool(is_true.any())} | {False} & {bool(is_true.all())}


# --- code that reports ---------------------------------------------------------------------------


class _Reporting(ast.NodeTransformer):
    """Replaces comparisons and truth tests by calls that report them."""

    def __init__(self, source: str, file: str) -> None:
        self.source, self.file = source, file
        self.decisions: dict[str, tuple[Decision, ast.AST]] = {}
        self.guards: set[ast.AST] = set()

    def _decision(self, node: ast.expr) -> ast.Constant:
        """Return the name of a new decision, which stands for it until the code is compiled."""
        text = " ".join((ast.get_source_segment(self.source, node) or "").split())
        is_guard = node in self.guards
        name = f"__layernorm_bench_decision_{len(self.decisions)}__"
        self.decisions[name] = Decision(text, node.lineno, self.file, is_guard), node
        return ast.copy_location(ast.Constant(name), node)

    def _call(self, function: str, node: ast.expr, *arguments: ast.expr) -> ast.expr:
        call = ast.Call(ast.Name(function, ast.Load()), [*arguments], [])
        return ast.copy_location(call, node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        middle = node.comparators[:-1]
        if all(isinstance(own, ast.Name | ast.Constant | ast.Attribute) for own in middle):
            pairs = zip([node.left, *middle], node.ops, node.comparators, strict=True)
            parts = [self._part(node, *pair) for pair in pairs]
            whole = parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), parts)
            return ast.copy_location(whole, node)
        return self.generic_visit(node)

    def _part(
        self, node: ast.Compare, left: ast.expr, sign: ast.cmpop, right: ast.expr
    ) -> ast.expr:
        decision = self._decision(node)
        compare = ast.copy_location(
            ast.Constant(f"__layernorm_bench_{type(sign).__name__}__"), node
        )
        return self._call(_COMPARE, node, decision, compare, self.visit(left), self.visit(right))

    def _truth(self, node: ast.expr) -> ast.expr:
        """Report the truth of an expression, or of its parts."""
        if isinstance(node, ast.Compare | ast.BoolOp | ast.Constant):
            found: ast.expr = self.visit(node)
            return found
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            node.operand = self._truth(node.operand)
            return node
        return self._call(_TRUTH, node, self._decision(node), self.visit(node))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        node.values = [self._truth(value) for value in node.values]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        return self._truth(node) if isinstance(node.op, ast.Not) else self.generic_visit(node)

    def _tested(self, node: Node) -> Node:
        test: ast.expr = node.test  # type: ignore[attr-defined]
        body: Any = getattr(node, "body", [])
        if (
            isinstance(node, ast.Assert)
            or _only_raises(body)
            or _only_raises(getattr(node, "orelse", []))
        ):
            self.guards.update(ast.walk(test))
        node.test = self._truth(test)  # type: ignore[attr-defined]
        for name in ("body", "orelse"):
            part = getattr(node, name, None)
            if isinstance(part, list):
                setattr(node, name, [self.visit(statement) for statement in part])
            elif part is not None:
                setattr(node, name, self.visit(part))
        return node

    visit_If = visit_IfExp = visit_While = visit_Assert = _tested  # noqa: N815 - names of ast

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.iter, node.ifs = self.visit(node.iter), [self._truth(test) for test in node.ifs]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``min(n, 8192)`` decides whether n < 8192."""
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        is_plain = not any(isinstance(own, ast.Call | ast.Starred) for own in node.args)
        if name not in {"min", "max"} or len(node.args) != 2 or node.keywords or not is_plain:
            return node
        decision = self._decision(node)
        sign = ast.copy_location(ast.Constant(_name_of(ast.Lt)), node)
        report = self._call(_COMPARE, node, decision, sign, *node.args)
        # (report, value)[1]
        pair = ast.Tuple([report, node], ast.Load())
        return ast.copy_location(ast.Subscript(pair, ast.Constant(1), ast.Load()), node)


def _name_of(sign: type[ast.cmpop]) -> str:
    """Return the name that stands for an operator until the code is compiled."""
    return f"__layernorm_bench_{sign.__name__}__"


def _only_raises(body: Any) -> bool:
    return (
        isinstance(body, list)
        and bool(body)
        and all(isinstance(statement, ast.Raise) for statement in body)
    )


@cache
def _reporting_file(file: str) -> tuple[dict[tuple[str, int], list[Any]], Mapping[str, Any]] | None:
    """Return the functions of a file by name and first line: own code, reporting code, nodes."""
    try:
        source = Path(file).read_text()
        own = compile(source, file, "exec", dont_inherit=True)
        tree = ast.parse(source)
        reporting = _Reporting(source, file)
        changed = ast.fix_missing_locations(reporting.visit(tree))
        code = compile(changed, file, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return None
    decisions = reporting.decisions
    constants: dict[str, Any] = {name: found for name, (found, _) in decisions.items()}
    constants |= {_name_of(sign): compare for sign, compare in _OPERATORS.items()}
    functions: dict[tuple[str, int], list[Any]] = {}
    for part in (own, code):
        for nested in _functions_in(part):
            functions.setdefault((nested.co_qualname, nested.co_firstlineno), []).append(nested)
    return functions, constants


def _functions_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _functions_in(constant)


def _reporting(function: FunctionType) -> tuple[CodeType, list[Decision]] | None:
    """Return code for a function that reports, and its decisions; None if its source is another."""
    code = function.__code__
    found = _reporting_file(code.co_filename)
    if found is None:
        return None
    functions, constants = found
    versions = functions.get((code.co_qualname, code.co_firstlineno), [])
    # two lambdas of one line cannot be told apart; a file may have changed since its import
    if len(versions) != 2 or versions[0].co_code != code.co_code:
        return None
    if versions[1].co_freevars != code.co_freevars:
        return None
    decisions: list[Decision] = []
    reporting = _with_constants(versions[1], constants, decisions)
    return (reporting, decisions) if decisions else None


def _with_constants(
    code: CodeType, constants: Mapping[str, Any], decisions: list[Decision]
) -> CodeType:
    """Return code with decisions and operators in place of their names."""
    new: list[Any] = []
    for constant in code.co_consts:
        value = constant
        if isinstance(constant, CodeType):
            value = _with_constants(constant, constants, decisions)
        elif isinstance(constant, str):
            value = constants.get(constant, constant)
        if isinstance(value, Decision):
            decisions.append(value)
        new.append(value)
    return code.replace(co_consts=tuple(new))
