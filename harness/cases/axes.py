"""A case is a value per axis. :data:`AXES` is the only place that knows an axis.

From it follow the options of the command line, the keys of sweep files, the covering array, the
conditions under which a mistake shows, and the command that repeats a case. To add a value, add it
to a row of AXES; to add an axis, add a field to :class:`harness.records.Case` and a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import product
from math import isqrt
from operator import eq, ge, le, ne
from typing import Any

from harness.records import Affine, Autograd, Case, Direction, Measurement, Mode
from harness.records.text import listed, shape_text

DTYPES = ("float32", "bfloat16", "float16", "float64")
SAME = "same"  # param_dtype: the dtype of x
EVERY = "all"  # implementation: the package's own, written for the device
PEERS = "peers"  # implementation: other packages', written for the device
FORWARD_CALLS = ("no_grad", "inference_mode", "recorded")
BACKWARD_CALLS = (
    "all_gradients",
    "frozen_x",
    "frozen_parameters",
    "frozen_weight",
    "frozen_bias",
    "only_weight",
    "only_bias",
    "non_leaf_x",
)
_NUMBER = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?")  # as Python writes one with %g
_FIELDS = tuple(field.name for field in fields(Case))
_ALWAYS_GIVEN = ("shape", "dtype", "distribution")  # in a command that repeats a case
_MOST_ELEMENTS = 150_000  # of x in a covering array; more take longer than all other cases together


class Relation(StrEnum):
    """How a value on an axis relates to that of a condition."""

    AT_LEAST = "at_least"
    AT_MOST = "at_most"
    MULTIPLE = "multiple"
    NOT_MULTIPLE = "not_multiple"
    IS = "is"
    IS_NOT = "is_not"
    ONE_OF = "one_of"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What can differ between two cases: a field of a case, or what follows from fields."""

    name: str
    """The field, the key of a workload and the option, with dashes."""
    kind: type[Any] = str
    """Of its values; ``tuple`` is a shape."""
    title: str = ""
    """What conditions call it, such as "the number of rows"; by default its name."""
    if_true: str = ""
    """What a condition says that a fact is true, or false."""
    if_false: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    """Conditions on other axes in words, such as "is frozen_x": "x is frozen"."""

    # what a user may set
    key: str = ""
    """The key in sweep files; empty if users do not set the axis."""
    default: tuple[Any, ...] = ()
    """The values of a sweep that does not set the axis; the usual value of a case is the first."""
    flag: str = ""
    """A short option, which messages name."""
    help: str = ""
    known: tuple[str, ...] = ()
    """Names that can be set, if they are few."""
    is_registered: bool = False
    """Whether the names are those that exist on the machine that runs the case."""
    families: tuple[str, ...] = ()
    """Names that a number follows, such as "largest" of "largest_65504"."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Of numbers, as pydantic names them."""

    # what the covering array varies
    values: tuple[Any, ...] = ()
    """Those that the covering array tries, the usual one first; empty if it does not vary it."""
    rare: tuple[Any, ...] = ()
    """Values that a row of the array has only where a combination needs them."""
    simple: Any = None
    """What a failing case is simplified to; None for the first of the values."""

    getter: Callable[[Case], Any] | None = None
    setter: Callable[[Case, Any], Case] | None = None
    follows_from: tuple[str, ...] = ()
    """The axes that decide it, of what is no axis of the array itself."""

    @property
    def option(self) -> str:
        """The option of the command line."""
        return f"--{self.name.replace('_', '-')}"

    def get(self, case: Case) -> Any:
        """Return the value of a case."""
        return getattr(case, self.name) if self.getter is None else self.getter(case)

    def set(self, case: Case, value: Any) -> Case:
        """Return the case with another value; other axes change where they must."""
        setter = self.setter
        return replace(case, **{self.name: value}) if setter is None else setter(case, value)

    def is_of_family(self, name: str) -> bool:
        """Whether a name is a family of the axis with a number."""
        family, _, number = name.rpartition("_")
        return family in self.families and _NUMBER.fullmatch(number) is not None

    def text(self, value: Any) -> str:
        """Return a value as a user writes it."""
        return shape_text(value) if isinstance(value, tuple) else str(value)


def factors(size: int, count: int) -> tuple[int, ...]:
    """Split a size into ``count`` factors, different ones where possible, the largest last.

    A kernel that mistakes one axis for another then fails.
    """
    if count < 2:
        return (size,) * count
    above = range(isqrt(size) + 1, size + 1)
    largest = next((part for part in above if part**2 > size and size % part == 0), 1)
    return (*factors(size // largest, count - 1), largest)


def _ordered(size: int, count: int, by: int) -> tuple[int, ...]:
    """Return :func:`factors` in an order that another size chooses: any axis may be the largest."""
    parts = factors(size, count)
    first = by % max(count, 1)
    return (*parts[first:], *parts[:first])


def _reshaped(case: Case, leading: tuple[int, ...], normalized: tuple[int, ...]) -> Case:
    return replace(case, shape=(*leading, *normalized), normalized_dims=len(normalized))


def _with_leading(at: int) -> Callable[[Case, int], Case]:
    """Return a setter of the size of a leading axis; x gets two of them, or keeps more."""

    def set_size(case: Case, size: int) -> Case:
        sizes = [*case.leading_shape] if len(case.leading_shape) > 1 else [2, 2]
        sizes[at] = size
        return _reshaped(case, tuple(sizes), case.normalized_shape)

    return set_size


def _param_dtype(case: Case) -> str:
    return SAME if case.param_dtype == case.dtype else case.param_dtype


def _with_param_dtype(case: Case, dtype: str) -> Case:
    return replace(case, param_dtype=case.dtype if dtype == SAME else dtype)


def _with_affine(case: Case, affine: Affine) -> Case:
    if affine == Affine.NONE:  # a parameter that is not given has no values
        case = replace(case, param_dtype=case.dtype, parameters="normal")
    return replace(case, affine=Affine(affine))


def _call(case: Case) -> str:
    if case.autograd is not Autograd.DEFAULT:
        return case.autograd.value
    return (FORWARD_CALLS if case.direction is Direction.FORWARD else BACKWARD_CALLS)[0]


def _with_call(case: Case, call: str) -> Case:
    is_default = call in {FORWARD_CALLS[0], BACKWARD_CALLS[0]}
    case = replace(case, autograd=Autograd.DEFAULT if is_default else Autograd(call))
    if call in BACKWARD_CALLS:
        return replace(case, direction=Direction.BACKWARD)
    return replace(case, direction=Direction.FORWARD, grad_output="shifted_normal")


def _fact(
    name: str, axis: str, if_true: str, if_false: str, getter: Callable[[Case], bool] | None = None
) -> Axis:
    return Axis(
        name=name, kind=bool, follows_from=(axis,), if_true=if_true, if_false=if_false,
        getter=getter,
    )  # fmt: skip


_ROWS: tuple[Axis, ...] = (
    # --- the fields of a case, in the order of --help
    Axis(
        name="implementation", key="implementations", flag="-i", default=(EVERY,),
        help="implementation: a name (see `list implementations`), all, peers, "
        "package.module:function or path/to/file.py:function",
    ),
    Axis(
        name="shape", key="shapes", kind=tuple, default=((64, 768), (512, 768), (2048, 1024)),
        help="shape of x; the last axis is normalised. Several shapes of one axis are given one by "
        "one: --shape 64 --shape 768",
    ),
    Axis(
        name="normalized_dims", key="normalized_dims", kind=int, limits={"ge": 1}, default=(1,),
        help="number of trailing axes to normalise over",
    ),
    Axis(
        name="dtype", key="dtypes", known=DTYPES, default=("float32",),
        help=f"dtype of x: {', '.join(DTYPES)}",
    ),
    Axis(
        name="param_dtype", key="param_dtypes", known=(*DTYPES, SAME), default=(SAME,),
        help='dtype of weight and bias; "same" is the dtype of x',
        values=(SAME, "float32"), getter=_param_dtype, setter=_with_param_dtype,
    ),
    Axis(
        name="device", key="devices", known=("cpu", "cuda"), is_registered=True, default=("cpu",),
        help="kind of device: cpu, cuda",
    ),
    Axis(
        name="distribution", key="distributions", is_registered=True, default=("normal",),
        help="input distribution; see `list distributions`",
        values=(
            "normal", "mixed_conditions", "mixed_scales", "mixed_outliers", "tiny_variance_offset",
            "mirrored", "ulp_comb", "last_digit", "square_overflow", "mixed_nonfinite",
        ),
        families=("largest",),
        # these hide mistakes: outputs are missing, all equal, or without an error bound
        rare=("ulp_comb", "last_digit", "square_overflow", "mixed_nonfinite"),
        title="the distribution of x",
    ),
    Axis(
        name="layout", key="layouts", is_registered=True, default=("contiguous",),
        help="layout of x in memory; see `list layouts`",
        values=(
            "contiguous", "storage_offset", "padded_rows", "transposed", "any_view",
            "channels_last", "channels_first", "sequence_first", "expanded", "expanded_second",
            "expanded_windows", "negated",
        ),
        families=("offset", "pitch"),
        title="the layout of x",
    ),
    Axis(
        name="grad_output", key="grad_outputs", is_registered=True, default=("shifted_normal",),
        help="gradient of y, from which a backward pass starts; see `list grad_outputs`",
        values=(
            "shifted_normal", "tiny", "huge", "mirrored", "few_rows", "expanded_row",
            "expanded_columns", "expanded_middle", "expanded_number", "transposed_normal",
            "any_view_normal", "offset_normal", "negated_normal", "nan_row", "infinity_row",
        ),
        rare=("few_rows", "nan_row", "infinity_row"), families=("largest",),
        title="the gradient of y",
    ),
    Axis(
        name="direction", key="directions", kind=Direction, default=(Direction.FORWARD,),
        help=f"pass to run: {', '.join(Direction)}",
    ),
    Axis(
        name="autograd", key="autograd", kind=Autograd, default=(Autograd.DEFAULT,),
        help=f"how the call takes part in autograd: {', '.join(Autograd)}",
    ),
    Axis(
        name="mode", key="modes", kind=Mode, default=(Mode.EAGER,),
        help="eager, or compiled with torch.compile",
    ),
    Axis(
        name="affine", key="affines", kind=Affine, default=(Affine.BOTH,),
        help=f"parameters to give: {', '.join(Affine)}",
        values=tuple(Affine), rare=(Affine.WEIGHT, Affine.BIAS, Affine.NONE), setter=_with_affine,
        words={
            "is both": "weight and bias are given", "is weight": "no bias is given",
            "is bias": "no weight is given", "is none": "neither weight nor bias is given",
        },
    ),
    Axis(
        name="parameters", key="parameters", is_registered=True, default=("normal",),
        help="values of weight and bias; see `list parameters`",
        values=(
            "normal", "negative_weight", "mixed_weight", "transposed", "any_view", "chunk",
            "expanded", "initial_ends", "mirrored", "nan_bias",
        ),
        families=("largest", "initial_within", "offset"),
        title="the distribution of the parameters",
    ),
    Axis(
        name="eps", key="eps", kind=float, default=(1e-5,),
        limits={"ge": 0, "allow_inf_nan": False},
        help="eps, which is added to the variance",
        values=(1e-5, 1e-12, 1e-3, 2.0, 0.0), rare=(2.0, 0.0),
    ),
    Axis(
        name="threads", key="threads", kind=int, default=(1,),
        limits={"ge": 1, "le": 4096},  # more than any machine has cores
        help="number of CPU threads that torch may use",
        values=(1, 2), rare=(2,),  # threads wait for each other for longer than a small case takes
        title="the number of threads", words={">= 2": "torch may use several threads"},
    ),
    Axis(
        name="seed", key="seeds", kind=int, default=(0,), help="seed of the random inputs",
        limits={"ge": 0, "lt": 1 << 63},  # an int64 in the results file
    ),
    # --- what the covering array varies of several fields. Sizes lie on each side of those at
    # which kernels change path
    Axis(
        # one; fewer and more than a warp of 32, a tile of 64, blocks of 128 and 1024; multiples
        # of 32; 84 times 97, so that each of two leading axes is more than a tile
        name="rows", kind=int, values=(1, 2, 6, 32, 35, 96, 130, 1030, 8148), simple=6,
        setter=lambda case, rows: _reshaped(
            case, _ordered(rows, len(case.leading_shape), case.hidden), case.normalized_shape
        ),
        title="the number of rows",
    ),
    Axis(
        # one; below, at and above a vector of 4; odd; multiples of 4, of 8 and of 32; near 32, 128
        # and 1024; widths of models; over 1024, odd and a multiple of 8; over 4096, odd; over 8192
        name="hidden", kind=int,
        values=(1, 3, 4, 8, 33, 64, 129, 300, 768, 1025, 1032, 2048, 4125, 10_248), rare=(1,),
        simple=40,  # a multiple of 8, and no power of two
        setter=lambda case, hidden: _reshaped(
            case, case.leading_shape, _ordered(hidden, case.normalized_dims, case.rows)
        ),
        title="N",
    ),
    Axis(
        name="leading_axes", kind=int, values=(0, 1, 2, 3), simple=1,
        getter=lambda case: len(case.leading_shape),
        setter=lambda case, n: _reshaped(
            case, _ordered(case.rows, n, case.hidden), case.normalized_shape
        ),
        title="the number of leading axes",
        words={"<= 0": "x is one row", ">= 2": "x has several leading axes"},
    ),
    Axis(
        name="normalized_axes", kind=int, values=(1, 2, 3),
        getter=lambda case: case.normalized_dims,
        setter=lambda case, n: _reshaped(
            case, case.leading_shape, _ordered(case.hidden, n, case.rows)
        ),
        title="the number of normalized axes",
        words={
            "<= 1": "one axis is normalised", ">= 2": "several axes are normalised",
            "is 2": "two axes are normalised", "is 3": "three axes are normalised",
        },
    ),
    Axis(
        name="call", values=FORWARD_CALLS + BACKWARD_CALLS,
        rare=(*FORWARD_CALLS, *BACKWARD_CALLS[1:-1]),  # fewer outputs, in which a mistake may show
        getter=_call, setter=_with_call,
        words={
            "is no_grad": "no gradient is recorded",
            "is inference_mode": "torch.inference_mode is on",
            "is recorded": "gradients are recorded, without a backward",
            "is all_gradients": "all gradients are computed", "is frozen_x": "x is frozen",
            "is frozen_parameters": "weight and bias are frozen",
            "is frozen_weight": "weight is frozen", "is frozen_bias": "bias is frozen",
            "is only_weight": "x and bias are frozen", "is only_bias": "x and weight are frozen",
            "is non_leaf_x": "x is the output of another layer",
        },
    ),
    # --- what follows from these, and is no axis of the array
    Axis(
        name="elements", kind=int, follows_from=("rows", "hidden"),
        getter=lambda case: case.rows * case.hidden, title="the number of elements of x",
    ),
    Axis(
        name="first_leading", kind=int, follows_from=("rows", "leading_axes"),
        getter=lambda case: (*case.leading_shape, 1)[0], setter=_with_leading(0),
        title="the size of the first axis",
    ),
    Axis(
        name="last_leading", kind=int, follows_from=("rows", "leading_axes"),
        getter=lambda case: (1, *case.leading_shape)[-1], setter=_with_leading(-1),
        title="the size of the last axis that is not normalised",
    ),
    _fact("is_power_of_two", "hidden", "N is a power of two", "N is no power of two",
          lambda case: case.hidden.bit_count() == 1),
    _fact("has_weight", "affine", "a weight is given", "no weight is given",
          lambda case: case.affine in {Affine.BOTH, Affine.WEIGHT}),
    _fact("has_bias", "affine", "a bias is given", "no bias is given",
          lambda case: case.affine in {Affine.BOTH, Affine.BIAS}),
    _fact("is_backward", "call", "a gradient is computed", "no gradient is computed",
          lambda case: case.direction is not Direction.FORWARD),
    _fact("is_recorded", "call", "gradients are recorded", "no gradient is recorded",
          lambda case: AXES["call"].get(case) not in FORWARD_CALLS[:2]),
    # these are facts of x itself: a case does not have them, its inputs do
    _fact("is_contiguous", "layout", "x is contiguous", "x is not contiguous"),
    _fact("is_row_dense", "layout", "the elements of a row are adjacent in memory",
          "the elements of a row are apart in memory"),
    _fact("is_finite", "distribution", "x is finite", "x has a NaN or infinity"),
    Axis(
        name="offset_ratio", kind=float, follows_from=("distribution", "eps"),
        title="|mean| / sqrt(variance + eps) of a row",
    ),
    Axis(
        name="least_variance_ratio", kind=float, follows_from=("distribution", "eps"),
        title="the smallest variance / eps of a row",
    ),
    Axis(
        name="largest", kind=float, follows_from=("distribution",),
        title="the largest element of x",
    ),
)  # fmt: skip
AXES: dict[str, Axis] = {axis.name: axis for axis in _ROWS}
MEASURE = Axis(
    name="measure", key="measure", kind=Measurement,
    default=(Measurement.ERRORS, Measurement.LATENCY, Measurement.MEMORY),
    help="what to measure: errors (always), latency, cold (latency with inputs in no cache), "
    "memory, instructions (needs valgrind)",
)  # fmt: skip
"""What a sweep sets beside the axes of its cases."""


def ordered(first: Iterable[str]) -> list[Axis]:
    """Return all axes: those named, in that order, then the others."""
    return [AXES[name] for name in dict.fromkeys((*first, *AXES))]


def sweep_axes() -> list[Axis]:
    """Return what a sweep sets, in the order of --help."""
    return [*(axis for axis in AXES.values() if axis.key), MEASURE]


# another order gives other rows
_ARRAY_ORDER = (
    "rows", "hidden", "leading_axes", "normalized_axes", "distribution", "layout", "affine",
    "parameters", "param_dtype", "eps", "call", "grad_output", "threads",
)  # fmt: skip


def array_axes() -> dict[str, Axis]:
    """Return the axes that the covering array varies."""
    return {axis.name: axis for axis in ordered(_ARRAY_ORDER) if axis.values}


def case_of(values: Mapping[str, Any]) -> Case:
    """Return the case that has a value on each axis; the first value of a shape may be any.

    The fields are set first, then what follows from them, in the order of ``values``.
    """
    own = {name: value for name, value in values.items() if name in _FIELDS}
    if own.get("param_dtype", SAME) == SAME:
        own["param_dtype"] = own["dtype"]
    case = Case(**own)
    for name, value in values.items():
        if name not in own:
            case = AXES[name].set(case, value)
    return case


def value_of(facts: Any, axis: str) -> Any:
    """Return the value on an axis of a case, a mapping, or an object with such an attribute."""
    if isinstance(facts, Case):
        return AXES[axis].get(facts)
    return facts[axis] if isinstance(facts, Mapping) else getattr(facts, axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition on one axis, such as "N >= 1025"."""

    axis: str
    relation: Relation
    value: Any
    """A number, a name or whether a fact is true; a tuple of names for ONE_OF."""

    def holds(self, facts: Any) -> bool:
        """Whether a case or a call meets it; ``facts`` as for :func:`value_of`."""
        return self.holds_for(value_of(facts, self.axis))

    def holds_for(self, own: Any) -> bool:
        """Whether a value on the axis meets it."""
        return bool(_RELATIONS[self.relation][0](own, self.value))

    @property
    def text(self) -> str:
        """The condition in words."""
        axis, value = AXES[self.axis], self.value
        if axis.kind is bool:
            return axis.if_true if value == (self.relation is Relation.IS) else axis.if_false
        shown = f"{value:.3g}" if isinstance(value, float) else str(value)
        if self.relation is Relation.ONE_OF:
            if axis.words:
                return listed((axis.words[f"is {name}"] for name in value), "or")
            shown = listed(value, "or")
        if self.relation is Relation.IS_NOT and f"is {shown}" in axis.words:
            return f"it is not so that {axis.words[f'is {shown}']}"
        predicate = f"{_RELATIONS[self.relation][1]} {shown}"
        return axis.words.get(predicate) or f"{axis.title or axis.name} {predicate}"


_RELATIONS: dict[Relation, tuple[Callable[[Any, Any], Any], str]] = {
    Relation.AT_LEAST: (ge, ">="),
    Relation.AT_MOST: (le, "<="),
    Relation.MULTIPLE: (lambda own, value: own % value == 0, "is a multiple of"),
    Relation.NOT_MULTIPLE: (lambda own, value: own % value != 0, "is not a multiple of"),
    Relation.IS: (eq, "is"),
    Relation.IS_NOT: (ne, "is not"),
    Relation.ONE_OF: (lambda own, values: own in values, "is"),
}


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Values of two axes that do not occur together."""

    axis: str
    values: tuple[Any, ...]
    other: str
    """Name of the other axis."""
    other_values: tuple[Any, ...]

    def holds(self, facts: Any) -> bool:
        """Whether both occur; ``facts`` as for :func:`value_of`."""
        return (
            value_of(facts, self.axis) in self.values
            and value_of(facts, self.other) in self.other_values
        )


def _not(axis: str, values: tuple[Any, ...], other: str, *excluded: Any) -> Exclusion:
    return Exclusion(axis, values, other, excluded)


def _only(axis: str, values: tuple[Any, ...], other: str, *allowed: Any) -> Exclusion:
    """Exclude all values of ``other`` that are not allowed together with ``values``."""
    return _not(
        axis, values, other, *(value for value in AXES[other].values if value not in allowed)
    )


_TOO_LARGE = tuple(
    _not("rows", (rows,), "hidden", hidden)
    for rows, hidden in product(AXES["rows"].values, AXES["hidden"].values)
    if rows * hidden > _MOST_ELEMENTS
)
_OF_BOTH = ("frozen_weight", "frozen_bias", "only_weight", "only_bias")
_IMPOSSIBLE = (
    _only("leading_axes", (0,), "rows", 1),
    # these layouts are contiguous if x has only one row, or too few axes;
    # without leading axes, an expanded x is one constant row, which hides most mistakes
    _not("layout", ("transposed", "channels_last", "expanded"), "leading_axes", 0),
    _not("layout", ("expanded", "expanded_second", "expanded_windows"), "rows", 1),
    _only(
        "layout",
        ("channels_first", "sequence_first", "expanded_second"),
        "leading_axes",
        2,
        3,
    ),
    _only("layout", ("channels_last",), "normalized_axes", 2, 3),
    _only("layout", ("expanded_windows",), "leading_axes", 1),
    _only("layout", ("expanded_windows",), "normalized_axes", 1),
    _not("grad_output", ("expanded_row",), "rows", 1),
    _only("grad_output", ("expanded_middle",), "leading_axes", 2, 3),
    # a forward has no output gradient
    _only("call", FORWARD_CALLS, "grad_output", "shifted_normal"),
    # a parameter that is frozen, or that alone requires a gradient, must be given
    _not("call", ("frozen_x", "frozen_parameters"), "affine", "none"),
    _only("call", _OF_BOTH, "affine", "both"),
    # a parameter that is not given has no values
    _only("affine", ("none",), "parameters", "normal"),
    _only("affine", ("none",), "param_dtype", SAME),
    _not("affine", ("weight",), "parameters", "nan_bias"),
    _not("affine", ("bias",), "parameters", "negative_weight", "mixed_weight"),
    # without eps, rows that are constant or nearly so have no exact result
    _only("eps", (0.0,), "distribution", "normal", "mixed_scales"),
    _not("eps", (0.0,), "hidden", 1),
    _not("parameters", ("transposed",), "normalized_axes", 1),
)
EXCLUSIONS: tuple[Exclusion, ...] = (*_IMPOSSIBLE, *_TOO_LARGE)
"""Values that cannot occur together, or that together repeat another condition or take long."""


def is_possible(case: Case) -> bool:
    """Whether x has elements and normalized axes, and no two conditions exclude each other."""
    is_empty = min(case.shape, default=0) < 1 or not case.normalized_dims
    return not is_empty and not any(exclusion.holds(case) for exclusion in _IMPOSSIBLE)


def changed(case: Case, axis: str, value: Any) -> Case | None:
    """Return ``case`` with another value on one axis; None if there is no such case."""
    if value_of(case, axis) == value:
        return case
    if AXES[axis].kind is int and value < 0:
        return None
    found = AXES[axis].set(case, value)
    return found if is_possible(found) and value_of(found, axis) == value else None


# --- how to repeat a case -------------------------------------------------------------------------


# of a case that `explain` cannot run, which shows y of an eager call without gradients
_NOT_EXPLAINED = ("autograd", "direction", "mode", "threads", "parameters", "grad_output")


def is_explainable(case: Case) -> bool:
    """Whether `explain` can run a case."""
    usual = Case(implementation=case.implementation, shape=case.shape)
    return all(getattr(case, name) == getattr(usual, name) for name in _NOT_EXPLAINED)


def command_options(case: Case, without: Collection[str] = ()) -> list[str]:
    """Return the options that make a case, without the implementation and the axes ``without``.

    The shape, the dtype and the distribution are always given, other axes where they are not usual.
    """
    words = []
    for axis in ordered(_FIELDS[1:]):
        if axis.key and axis.name not in {"implementation", *without}:
            value = axis.get(case)
            if axis.name in _ALWAYS_GIVEN or value != axis.default[0]:
                words += [axis.option, axis.text(value)]
    return words


def python_line(case: Case, handle: str | None = None, options: str = "") -> str:
    """Return Python that runs and checks ``case`` by itself.

    Args:
        case: what to run.
        handle: the target, as Python source; by default the name of the implementation.
        options: further arguments, as Python source that begins with a comma; they may use
            ``CallOptions``.
    """
    usual = Case(implementation=case.implementation, shape=case.shape)
    values = {name: getattr(case, name) for name in _FIELDS}
    arguments = [f"shape={values.pop('shape')}"]
    for name, value in values.items():
        if value != getattr(usual, name):
            arguments.append(f"{name}={(str(value) if isinstance(value, str) else value)!r}")
    names = "CallOptions, verify_case" if options else "verify_case"
    target = handle or repr(case.implementation)
    call = f"verify_case({target}, {', '.join(arguments)}{options})"
    return f"from layernorm_bench import {names}; print({call})"


def unusual(case: Case) -> tuple[int, int]:
    """Return how many settings differ from the usual ones, and the number of elements."""
    return len(case.settings()), case.rows * case.hidden
