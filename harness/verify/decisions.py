"""Which conditions of a target were decided both ways, and how one that was not can be turned.

The functions of a target get code in which every comparison, truth test, look-up, limit and branch
reports its operands and its outcome, as CmpLog of AFL++ does. This code runs in additional calls
alone: calls that are judged or timed run the target's own. An operand that follows the size of the
input (the input-to-state correspondence of Redqueen, NDSS 2019) tells which size turns it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, pairwise
from math import isfinite, prod
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

from harness.cases.axes import AXES
from harness.records import Case
from harness.records.text import grouped
from harness.run import ContractViolationError, ImplementationError
from harness.verify.code import nested

__all__ = ["LEAST_HIDDEN", "Change", "Decision", "Decisions"]

_REPORT = "__layernorm_bench_report__"
Compare = Callable[[Any, Any], Any]

# by the names of ast
_OPERATORS: dict[str, Compare] = {
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge,
    "Eq": operator.eq, "NotEq": operator.ne, "Is": operator.is_, "IsNot": operator.is_not,
    "In": lambda item, items: item in items, "NotIn": lambda item, items: item not in items,
}  # fmt: skip
_KEPT = 40  # observations of a comparison: enough to see which size an operand follows
_SIZES = 3  # of rows and of N: a number that was computed with so many follows from none
_FEW = 5  # observations that show nothing
LEAST_HIDDEN = 4  # shorter rows hide mistakes
_REACHED = 3  # cases kept of those that reached a decision
_MOST_KEYS = 100  # of a table; a longer one is data
_STEPS = (1, 0, -1)  # from the size at which a comparison turns
_FAR = 1 << 40  # more than any size
_MOST_BITS = 12  # 2^12 times the sizes of the array
# what no case on one device, outside of compilers, can turn
_OF_RUN = re.compile(
    r"is_(scripting|tracing|compiling|dynamo_compiling|cuda|xpu|mps|meta)|device_count"
    r"|ImportError|ModuleNotFoundError"
)
_OF_DEVICE = re.compile("device")  # with numbers it may be a limit of the device, as of memory
# what a comparison may be with: its value in a case; the axes that can be set are sizes and eps
_FACTS: dict[str, Callable[[Case], float]] = {
    name: AXES[name].get
    for name in (
        "hidden", "rows", "elements", "leading_axes", "normalized_axes", "first_leading",
        "last_leading", "eps",
    )
}  # fmt: skip
# functions whose calls decide something, by name
_CLAMPS = ("clamp", "clip", "clamp_min", "clamp_max", "clamp_", "clip_", "hardtanh")
_KINDS = {"min": "limit", "max": "limit", "get": "get", **dict.fromkeys(_CLAMPS, "clamp")}
_KINDS |= dict.fromkeys(("bisect", "bisect_left", "bisect_right"), "bisect")
_SHORTENS = "shortens"
_SITE, _LITERAL = "site", "literal"  # verbs of a place with one decision for each key or limit
_VALUE = "value"  # verb of a place that computes a number, and decides nothing

Change = tuple[str, Any]
"""An axis, and a value that it is to have in a case."""
Observed = list[tuple[float, Case]]
"""Values of an operand, each with its case."""


@dataclass(slots=True, eq=False)
class Decision:
    """What may have two outcomes, such as a comparison, and those that it had."""

    text: str
    line: int
    file: str
    is_guard: bool
    """Whether one outcome does nothing but raise."""
    verb: str = ""
    """What follows "never", of one with a single outcome of interest, such as "taken"."""
    outcomes: set[bool] = field(default_factory=set)
    declined: set[bool] = field(default_factory=set)
    """The outcomes in calls that the target declines."""
    operands: dict[tuple[float, float], Case] = field(default_factory=dict)
    """Numbers that were compared, and the first case of each pair."""
    compare: Compare = operator.ne
    """What was done with them."""
    reached_by: list[Case] = field(default_factory=list)
    """The first cases that led to it."""
    smallest: dict[bool, Case] = field(default_factory=dict)
    """Of each outcome, the smallest case with it in which contract checks show mistakes."""

    @property
    def is_settled(self) -> bool:
        """Whether it had every outcome of interest."""
        return self.is_guard or (True in self.outcomes if self.verb else len(self.outcomes) == 2)

    @property
    def is_open(self) -> bool:
        """Whether it had one outcome alone, and a case on this device might give it the other."""
        if self.is_settled or not self.outcomes or _OF_RUN.search(self.text):
            return False
        if _OF_DEVICE.search(self.text) and not self.operands:
            return False
        if self.verb == _SHORTENS:
            has_own_size = len({size for _, size in self.operands}) < 2
            if has_own_size or not any(is_left for _, _, is_left in self.limits):
                return False
        return not (self.declined >= {True, False} - self.outcomes or self._is_of_empty)

    @property
    def named(self) -> str:
        """The outcome that it did not have, and where."""
        never = self.verb or ("false" if True in self.outcomes else "true")
        return f"{self.text} never {never} (line {self.line} of {Path(self.file).name})"

    @property
    def limits(self) -> Iterator[tuple[Observed, float, bool]]:
        """Yield the values of an operand, the only value of the other, and whether that is left."""
        # an empty x may have another N; with several normalized axes, the last one and N differ
        seen = [*self.operands.items()]
        full = [own for own in seen if 0 not in own[1].shape] or seen
        plain = [own for own in full if own[1].normalized_dims == 1]
        plain = plain if len(plain) >= _FEW else full
        lefts, rights = ([(pair[side], case) for pair, case in plain] for side in (0, 1))
        for own, others in ((lefts, rights), (rights, lefts)):
            limits = {value for value, _ in others}
            if len(limits) == 1:
                yield own, limits.pop(), own is rights

    @property
    def _is_of_empty(self) -> bool:
        """Whether it would take an x without elements: no size of 1 or more turns it."""
        for observed, limit, is_left in self.limits:
            # one number may equal a size by chance
            is_varied = len({value for value, _ in observed}) > 1 or self.compare is operator.ne
            if limit in {0, 1} and is_varied and any(_followed(observed)):
                pairs = ((limit, own) if is_left else (own, limit) for own in (1, 2, 3, _FAR))
                if {bool(self.compare(*pair)) for pair in pairs} <= self.outcomes:
                    return True
        return False

    def turns(self) -> Iterator[Change]:
        """Yield changes of a case that may give it the other outcome.

        They are the sizes at which an operand that follows a size reaches the other operand.
        """
        for observed, limit, _ in self.limits:
            for name, points in _followed(observed):
                largest, value = points[-1]
                at = limit * largest / value
                if name == "eps":
                    yield from ((name, at * factor) for factor in (2.0, 0.5, 1.0))
                elif isfinite(at):
                    yield from ((name, round(at) + step) for step in (*_STEPS, round(at) // 2))
                smallest, least = points[0]
                if 0 < limit - value < _MOST_BITS and least * largest > 2 * value * smallest:
                    yield name, round(largest * 2 ** (limit - value + 1))  # a logarithm


def _followed(observed: Observed) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield what an operand follows, and its values: pairs of the size and the operand."""
    for name, fact in _FACTS.items():
        points = sorted((fact(case), value) for value, case in observed)
        values = [value for _, value in points]
        is_same = all(value == own for own, value in points)
        is_growing = values == sorted(values) and len({*values}) > 2
        if (is_same or is_growing) and points[-1][1]:
            yield name, points


def _is_checked(case: Case) -> bool:
    """Whether contract checks can be run on such an x, and show mistakes."""
    is_usual = bool(case.leading_shape) and case.rows > 0 and case.hidden >= LEAST_HIDDEN
    return is_usual and not case.layout.startswith("expanded")


def _row_count_and_size(case: Case) -> tuple[bool, int]:
    """Order cases: a single row, which may hide mistakes, comes last."""
    return case.rows < 2, prod(case.shape)


class Decisions:
    """The decisions in functions of a target."""

    def __init__(self, functions: Iterable[FunctionType], tables: Mapping[int, Any]) -> None:
        """Make the code that reports.

        Args:
            functions: of the target.
            tables: lists, tuples and dictionaries that these name, by id.
        """
        self.all: dict[Any, Decision] = {}
        self._tables = tables
        self._pending: list[tuple[Decision, bool, Any, Any]] = []
        self._pending_values: set[int] = set()
        self._computed: dict[int, tuple[set[int], set[int]]] = {}  # in which rows, in which N
        codes = [(function, _reporting(function, self.all)) for function in functions]
        self._codes = [(function, code) for function, code in codes if code is not None]

    @property
    def open(self) -> list[Decision]:
        """Those with one outcome alone, in the order of the source."""
        return [decision for decision in self.all.values() if decision.is_open]

    @property
    def are_settled(self) -> bool:
        """Whether a further call can show nothing new."""
        return all(own.is_settled for own in self.all.values())

    @property
    def computed(self) -> set[int]:
        """The integers that were computed whatever the sizes were, such as ``WARPS * LANES``."""
        return {value for value, own in self._computed.items() if min(map(len, own)) >= _SIZES}

    def observe(self, case: Case, call: Callable[[], object], *, is_declined: bool = False) -> bool:
        """Run a call with the code that reports; return whether a decision had a new outcome.

        What a call decided counts if it succeeds.

        Args:
            case: that is called.
            call: runs it.
            is_declined: whether the target declines the case.
        """
        if not self._codes:
            return False
        try:
            with self._installed():
                call()
        except (ImplementationError, ContractViolationError):
            for decision, outcome, _, _ in self._pending if is_declined else ():
                decision.declined.add(outcome)
            return False
        self._note_computed(case)
        is_new = False
        for decision, outcome, left, right in self._pending:
            is_new |= outcome not in decision.outcomes
            decision.outcomes.add(outcome)
            if _is_checked(case):
                known = decision.smallest.setdefault(outcome, case)
                decision.smallest[outcome] = min(known, case, key=_row_count_and_size)
            if case not in decision.reached_by and len(decision.reached_by) < _REACHED:
                decision.reached_by.append(case)
            if left is not None and len(decision.operands) < _KEPT:
                decision.operands.setdefault((left, right), case)
        return is_new

    def compute(self, case: Case, call: Callable[[], object]) -> None:
        """Run a call for the numbers that it computes; what it decides is not noted."""
        with suppress(ImplementationError, ContractViolationError), self._installed():
            call()
            self._note_computed(case)

    def _note_computed(self, case: Case) -> None:
        for value in self._pending_values:
            rows, hidden = self._computed.setdefault(value, (set(), set()))
            rows.add(case.rows)
            hidden.add(case.hidden)

    def outcomes_in(self, call: Callable[[], object]) -> set[tuple[Decision, bool]]:
        """Return what a call decided, without noting it; nothing if it raises."""
        with suppress(ImplementationError, ContractViolationError), self._installed():
            call()
            return {(decision, outcome) for decision, outcome, _, _ in self._pending}
        return set()

    @contextmanager
    def _installed(self) -> Iterator[None]:
        self._pending.clear()
        self._pending_values.clear()
        before = [(function, function.__code__) for function, _ in self._codes]
        for function, code in self._codes:
            function.__globals__[_REPORT] = self
            function.__code__ = code
        try:
            yield
        finally:
            for function, own in before:
                function.__code__ = own
                function.__globals__.pop(_REPORT, None)

    def _add(self, decision: Decision, value: Any, left: Any = None, right: Any = None) -> None:
        with suppress(Exception):  # a truth value that is none, as of a tensor of several elements
            outcomes = {bool(value)} if not isinstance(value, torch.Tensor) else _outcomes(value)
            is_number = isinstance(left, int | float) and isinstance(right, int | float)
            pair = (left, right) if is_number else (None, None)
            self._pending += [(decision, outcome, *pair) for outcome in outcomes]

    def _compare(self, decision: Decision, sign: str, left: Any, right: Any) -> Any:
        decision.compare = _OPERATORS[sign]
        outcome = decision.compare(left, right)
        self._add(decision, outcome, left, right)
        return outcome

    def _compare_at(
        self, site: Decision, at: Any, text: str, sign: str, left: Any, right: Any, verb: str = ""
    ) -> Any:
        """Compare for the decision of one key or limit at a place in the source."""
        made = Decision(text, site.line, site.file, site.is_guard, verb)
        decision = self.all.setdefault((id(site), text, at), made)
        return self._compare(decision, sign, left, right)

    def _truth(self, decision: Decision, value: Any) -> Any:
        """A number or container is true if it, or its length, is not 0."""
        is_container = isinstance(value, list | tuple | dict | str)
        size = len(value) if is_container else None if isinstance(value, bool) else value
        self._add(decision, value, size, 0)
        return value

    def _value(self, _: Decision, value: Any) -> Any:
        if type(value) is int:
            self._pending_values.add(value)
        return value

    def _taken(self, decision: Decision, is_taken: bool, value: Any = None) -> Any:
        self._add(decision, is_taken)
        return value

    def _item(self, site: Decision, value: Any, index: Any) -> Any:
        """``TABLE[a, b]`` decides which entry is taken, ``x[:9]`` whether x has more elements."""
        self._key(site, value, index)
        parts = index if isinstance(index, tuple) else (index,)
        for at, part in enumerate(parts):
            axis = at - len(parts) if Ellipsis in parts[:at] else at
            if isinstance(part, slice) and part.step is None:
                self._slice(site, value, axis, part)
        return value[index]

    def _slice(self, site: Decision, value: Any, axis: int, part: slice) -> None:
        verb, end = ("has elements", part.start) if part.stop is None else (_SHORTENS, part.stop)
        with suppress(Exception):  # it has no such axis
            size = value.shape[axis] if isinstance(value, torch.Tensor) else len(value)
            if isinstance(end, int) and end > 0:
                self._compare_at(site, (axis, verb), site.text, "Lt", end, size, verb)

    def _key(self, site: Decision, table: Any, key: Any) -> None:
        is_table = id(table) in self._tables or site.verb == _LITERAL
        if not is_table or type(table) not in {dict, list, tuple, str} or len(table) > _MOST_KEYS:
            return
        for own in table if isinstance(table, dict) else range(len(table)):
            both = (value if isinstance(value, tuple) else (value,) for value in (key, own))
            for at, (given, wanted) in enumerate(zip(*both, strict=False)):
                # a dtype or device is the same in all cases
                if not isinstance(wanted, int | float | str | type | None):
                    break
                text = f"{site.text}[{own!r}]"
                if not self._compare_at(site, at, text, "Eq", given, wanted, "taken"):
                    break

    def _call(
        self, site: Decision, kind: str, function: Callable[..., Any], *values: Any, **named: Any
    ) -> Any:
        """Report what a call of a kind in _KINDS decides, and call."""
        owner = getattr(function, "__self__", None)
        match kind:
            case "limit":  # min(n, 8192): whether n < 8192
                self._compare(site, "Lt", *values)
            case "get":
                self._key(site, owner, values[0])
            case "bisect":  # bisect(limits, n): whether n is less than one of the limits
                limits, value, *_ = values
                for limit in limits if len(limits) <= _MOST_KEYS else ():
                    self._compare_at(site, 0, f"{site.text} < {limit!r}", "Lt", value, limit)
            case "clamp":  # x.clamp(-20, 20): whether elements are less or greater
                value, *limits = (owner, *values) if isinstance(owner, torch.Tensor) else values
                for limit in (*limits, *named.values()):
                    if isinstance(limit, int | float) and abs(limit) > 1:
                        symbol, sign = ("<", "Lt") if limit < 0 else (">", "Gt")
                        text = f"{site.text} {symbol} {limit!r}"
                        self._compare_at(site, 0, text, sign, value, limit)
        return function(*values, **named)


def _outcomes(value: torch.Tensor) -> set[bool]:
    """Return whether elements are true, and whether elements are false."""
    is_true = value.detach().bool()
    return {True} & {bool(is_true.any())} | {False} & {bool(is_true.all())}


# --- code that reports ---------------------------------------------------------------------------


ByName = dict[str, Decision]


class _Reporting(ast.NodeTransformer):
    """Replaces what decides by calls that report it."""

    def __init__(self, source: str, file: str) -> None:
        self.lines, self.file = source.encode().split(b"\n"), file
        self.decisions: ByName = {}
        self.guards: set[ast.AST] = set()

    def _text(self, node: Any) -> str:
        """Return the source of a node; ``ast.get_source_segment`` splits the file each time."""
        lines = self.lines[node.lineno - 1 : node.end_lineno]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(b" ".join(lines).decode().split())

    def _decision(self, node: Any, text: str = "", verb: str = "") -> ast.Constant:
        """Return the name of a new decision, which stands for it until the code is compiled."""
        name = f"__layernorm_bench_decision_{len(self.decisions)}__"
        text, is_guard = text or self._text(node), node in self.guards
        self.decisions[name] = Decision(text, node.lineno, self.file, is_guard, verb)
        return ast.Constant(name)

    def _report(self, method: str, decision: ast.Constant, *operands: ast.expr) -> ast.Call:
        """Return a call of a method of Decisions."""
        report = ast.Attribute(ast.Name(_REPORT, ast.Load()), method, ast.Load())
        return ast.Call(report, [decision, *operands], [])

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        middle = node.comparators[:-1]
        if not all(isinstance(own, ast.Name | ast.Constant | ast.Attribute) for own in middle):
            return self.generic_visit(node)
        sides = [self.visit(side) for side in (node.left, *node.comparators)]
        parts: list[ast.expr] = [
            self._report("_compare", self._decision(node), ast.Constant(type(sign).__name__), *pair)
            for sign, pair in zip(node.ops, pairwise(sides), strict=True)
        ]
        return parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), parts)

    def _truth(self, node: ast.expr) -> Any:
        """Report the truth of an expression, or of its parts."""
        is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        if is_not or isinstance(node, ast.Compare | ast.BoolOp | ast.Constant):
            return self.visit(node)
        return self._report("_truth", self._decision(node), self.visit(node))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        node.values = [self._truth(value) for value in node.values]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if not isinstance(node.op, ast.Not):
            return self.generic_visit(node)
        node.operand = self._truth(node.operand)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        place = self._decision(node, verb=_VALUE)
        return self._report("_value", place, self.generic_visit(node))  # type: ignore[arg-type]

    def _tested(self, node: Any) -> Any:
        test, bodies = node.test, (getattr(node, name, []) for name in ("body", "orelse"))
        if isinstance(node, ast.Assert) or any(map(_only_raises, bodies)):
            self.guards.update(ast.walk(test))
        node.test = ast.Constant(value=True)
        self.generic_visit(node)
        node.test = self._truth(test)
        return node

    visit_If = visit_IfExp = visit_While = visit_Assert = _tested  # noqa: N815 - names of ast

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.iter, node.ifs = self.visit(node.iter), [self._truth(test) for test in node.ifs]
        return node

    def _branch(self, node: Any, text: str) -> ast.Constant:
        """Report in a body that it is taken; return the name of the decision."""
        if _only_raises(node.body):
            self.guards.add(node)
        decision = self._decision(node, text, "taken")
        node.body.insert(0, ast.Expr(self._report("_taken", decision, ast.Constant(value=True))))
        return decision

    def _untaken(self, decision: ast.Constant, *value: ast.expr) -> ast.Call:
        return self._report("_taken", decision, ast.Constant(value=False), *value)

    def visit_Match(self, node: ast.Match) -> ast.AST:
        self.generic_visit(node)
        for case in node.cases:
            case.lineno = case.pattern.lineno  # type: ignore[attr-defined]
            decision = self._branch(case, f"case {self._text(case.pattern)}")
            node.subject = self._untaken(decision, node.subject)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        if node.guard is not None:
            node.guard = self._truth(node.guard)
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        self.generic_visit(node)
        for handler in node.handlers:
            what = "except" if handler.type is None else f"except {self._text(handler.type)}"
            decision = self._branch(handler, what)
            node.body.insert(0, ast.Expr(self._untaken(decision)))
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        is_literal = isinstance(node.value, ast.Dict | ast.Tuple | ast.List)
        is_sliced = any(isinstance(own, ast.Slice) for own in ast.walk(node.slice))
        is_fixed = not is_sliced and isinstance(node.slice, ast.Constant | ast.UnaryOp)
        text = self._text(node if is_sliced else node.value)
        self.generic_visit(node)
        if is_fixed or not isinstance(node.ctx, ast.Load):
            return node
        site = self._decision(node, text, _LITERAL if is_literal else _SITE)
        return self._report("_item", site, node.value, _Slices().visit(node.slice))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``min(n, 8192)``, ``TABLE.get(n)``, ``bisect(limits, n)`` and ``x.clamp(max=9)``."""
        is_starred = any(isinstance(own, ast.Starred) for own in node.args)
        kind = _KINDS.get(getattr(node.func, "id", getattr(node.func, "attr", "")))
        owner = getattr(node.func, "value", None)
        arguments = [self._text(own) for own in node.args] if kind else []
        text, verb = "", _SITE
        match kind, owner, arguments:
            case "limit", None, [left, right]:
                text, verb = f"{left} < {right}", ""
            case "bisect", _, [_, value, *_]:
                text = value
            case "get", ast.expr(), [_, *_]:
                text, verb = self._text(owner), _LITERAL if isinstance(owner, ast.Dict) else _SITE
            case "clamp", ast.expr(), _ if self._text(owner) != "torch":
                text = self._text(owner)
            case "clamp", _, [value, *_]:
                text = value
        self.generic_visit(node)
        if is_starred or not text or (node.keywords and kind != "clamp"):
            return node
        decision = self._decision(node, text, verb)
        report = self._report("_call", decision, ast.Constant(kind), node.func, *node.args)
        report.keywords = node.keywords
        return report


class _Slices(ast.NodeTransformer):
    """Replaces ``a:b`` by ``slice(a, b, None)``."""

    def visit_Slice(self, node: ast.Slice) -> ast.AST:
        parts = [own or ast.Constant(None) for own in (node.lower, node.upper, node.step)]
        return ast.Call(ast.Name("slice", ast.Load()), parts, [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return node


def _only_raises(body: Any) -> bool:
    is_block = isinstance(body, list) and bool(body)
    return is_block and all(isinstance(statement, ast.Raise) for statement in body)


@cache
def _reporting_file(file: str) -> tuple[dict[tuple[str, int], list[CodeType]], ByName]:
    """Return the functions of a file by name and first line, own and reporting, and decisions."""
    source = Path(file).read_text()
    reporting = _Reporting(source, file)
    changed = ast.fix_missing_locations(reporting.visit(ast.parse(source)))
    codes = (nested(compile(tree, file, "exec", dont_inherit=True)) for tree in (source, changed))
    functions = grouped(((own.co_qualname, own.co_firstlineno), own) for own in chain(*codes))
    return functions, reporting.decisions


def _reporting(function: FunctionType, decisions: dict[Any, Decision]) -> CodeType | None:
    """Return code for a function that reports; None if its source is another or decides nothing.

    Its decisions are new, and are added to ``decisions``.
    """
    code = function.__code__
    try:
        functions, known = _reporting_file(code.co_filename)
    except (OSError, SyntaxError, ValueError):
        return None
    versions = functions.get((code.co_qualname, code.co_firstlineno), [])
    # two lambdas of one line cannot be told apart; a file may have changed since its import
    is_same = len(versions) == 2 and versions[0].co_code == code.co_code
    if not is_same or versions[1].co_freevars != code.co_freevars:
        return None
    made: ByName = {}
    reporting = _with_decisions(versions[1], known, made)
    places = {_SITE, _LITERAL, _VALUE}
    decisions |= {(function, name): own for name, own in made.items() if own.verb not in places}
    return reporting if made else None


def _with_decisions(code: CodeType, known: ByName, made: ByName) -> CodeType:
    """Return code with new decisions, without an outcome, in place of the names of known ones."""

    def replaced(constant: Any) -> Any:
        if isinstance(constant, CodeType):
            return _with_decisions(constant, known, made)
        if not isinstance(constant, str) or constant not in known:
            return constant
        own = known[constant]
        unseen = Decision(own.text, own.line, own.file, own.is_guard, own.verb)
        return made.setdefault(constant, unseen)

    return code.replace(co_consts=tuple(map(replaced, code.co_consts)))
