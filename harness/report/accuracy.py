"""How wrong: error against condition, drawn over the bounds, and the gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, sqrt
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.numerics import SIGNIFICAND_BITS, chain_length, condition_limit, largest_error_ulp
from harness.records import Direction, Mode, OutputErrors, Record, Status
from harness.records.text import count, first_of, in_words, ulp_text
from harness.report.document import (
    SYMBOLS,
    SYMBOLS_TEXT,
    Block,
    Cell,
    FigureBlock,
    LegendEntry,
    Panel,
    Text,
    first_open,
    name_of,
    pill,
    rounded,
)
from harness.report.figures import (
    DASHES,
    FACE,
    INK,
    SERIES,
    EndLabel,
    canvas,
    end_labels,
    level,
    log_scales,
    series_id,
)
from harness.report.frame import PageData, groups, is_exactly_zero, tables_by_device, worst

_CONDITION_CAPTION = (
    "Marks: the largest error that was measured, of standard normal numbers plus a growing "
    "offset; smaller marks are other inputs of the same shape. Filled: within its bound; half "
    "filled: inaccurate; hollow: out of guarantee; ✕: wrong; at the top: not finite. Broad lines: "
    "the error bound of each class of algorithms, for any rows (of shifted: with no element "
    "beyond 5 standard deviations). Each ends at its limit in theory: beyond it the algorithm may "
    "lose every digit, so that a mark there is out of guarantee. A mark above the line of its "
    "class is inaccurate or wrong. The condition number of a row, sqrt(1 + mean²/variance), is "
    "about its mean over its standard deviation. Above the upper dashed line no digit of the "
    "result is right. Constant rows have an infinite condition and are not drawn."
)


def error_against_condition(data: PageData) -> Iterator[Block]:
    """Show how the error grows with the mean of the inputs over their standard deviation."""
    cases = data.cases
    forward = cases[(cases["direction"] == Direction.FORWARD) & cases["y_ulp"].notna()]
    if not len(forward):
        yield Text("No error of a forward pass was measured.")
        return
    figures = first_open(
        figure
        for (device, dtype), rows in groups(forward, "device", "dtype")
        if (figure := _condition_figure(device, dtype, rows))
    )
    none = Text("No shape was run with two or more offsets, so there is no curve to draw.")
    yield from figures or (none,)
    conditions = forward.groupby("distribution")["condition"].max()
    yield from tables_by_device(
        worst(forward, ["device", "dtype", "label", "distribution"], "y_ulp"),
        "errors",
        "Largest error of y in ulp",
        f"The worst case of all shapes. {SYMBOLS_TEXT}",
        _error_cell,
        across="distribution",
        order=sorted(
            conditions.index, key=lambda name: (not _is_offset(name), conditions[name], name)
        ),
    )


def _error_cell(row: Any) -> Cell:
    where = f"{row.shape}, condition {rounded(row.condition)}"
    return pill(row.status, rounded(row.y_ulp), title=f"{where}: {row.reason or 'ok'}")


def _condition_figure(device: str, dtype: str, rows: pd.DataFrame) -> FigureBlock | None:
    finite = rows[np.isfinite(rows["condition"]) & (rows["condition"] > 0)]
    series = finite[finite["distribution"].map(_is_offset).astype(bool)]
    if series["distribution"].nunique() < 2:
        return None
    # the shape and setting with the most offsets; of several, the largest
    offsets = series.groupby(["elements", "shape", "setting"])["distribution"].nunique()
    _, shape, setting = offsets.sort_values(kind="stable").index[-1]
    own = rows[(rows["shape"] == shape) & (rows["setting"] == setting)]
    own = worst(own, ["implementation", "mode", "distribution"], "y_ulp").sort_index()
    here = own[own.index.isin(finite.index)]
    is_offset = here["distribution"].isin(series["distribution"])
    points, lines = here[~is_offset], here[is_offset].sort_values("condition", kind="stable")
    bounds = _bounds(lines)
    title = f"Error of y against condition: {device}, forward, {dtype}, {shape}"
    draw = partial(_draw_condition, title=title, lines=lines, points=points, bounds=bounds)
    present = set(lines["algorithm"])
    return FigureBlock(
        title=title,
        caption=_CONDITION_CAPTION,
        panels=(Panel(name_of("error against condition", device, dtype), title, draw),),
        conclusion=_conclusion(own, bounds),
        legend=(
            *(
                LegendEntry(in_words(name), series_id(_colour(name)), mark)
                for name, mark in zip(CLASSES, "▼■◆●✚", strict=True)
                if name in present
            ),
            LegendEntry("bound of the class"),
        ),
        width="wide",
    )


def _conclusion(rows: pd.DataFrame, bounds: list[BoundLine]) -> str:
    """Say up to which condition number each implementation was right, and the limits in theory.

    Rows that round to a constant, which the figure cannot show, are told apart.
    """
    is_drawn, is_right = np.isfinite(rows["condition"]), rows["status"] == Status.OK
    limits = rows[is_drawn & ~is_right].groupby("label", observed=True)["condition"].min()
    kept = rows[is_drawn & ~rows["label"].isin(limits.index)]
    sentences = []
    if len(kept):
        names = ", ".join(str(label) for (label,), _ in groups(kept, "label"))
        highest, error = rounded(kept["condition"].max()), ulp_text(kept["y_ulp"].max())
        sentences.append(
            f"Right up to condition {highest}, the highest measured: {names} (up to {error} off)."
        )
    if len(limits):
        limits = limits.sort_values(kind="stable")
        names = ", ".join(f"{label} at {rounded(at)}" for label, at in limits.items())
        sentences.append(f"First condition number that is not right: {names}.")
    beyond = worst(rows[~is_drawn & ~is_right], ["label"], "y_ulp").sort_index()
    if len(beyond):
        names = ", ".join(
            f"{label} {in_words(status)} (up to {ulp_text(error)} off)"
            for label, status, error in beyond[["label", "status", "y_ulp"]].to_numpy()
        )
        sentences.append(f"On rows that round to a constant, which are not drawn: {names}.")
    ends = ", ".join(
        f"{bound.words} {rounded(bound.limit, 2)}" for bound in bounds if np.isfinite(bound.limit)
    )
    return " ".join([*sentences, *([f"Limit in theory: {ends}."] if ends else [])])


def _bounds(lines: pd.DataFrame) -> list[BoundLine]:
    """Return the bounds that the implementations declare, in the order of the classes."""
    known = lines[lines["algorithm"].isin(CLASSES) & lines["statistics"].isin(SIGNIFICAND_BITS)]
    keys = known[["algorithm", "reduction", "statistics", "hidden", "dtype"]].drop_duplicates()
    bounds = [BoundLine(*key) for key in keys.astype(object).to_numpy()]
    return sorted(bounds, key=lambda bound: (CLASSES.index(bound.algorithm), bound.reduction))


def _is_offset(distribution: str) -> bool:
    return distribution == "normal" or distribution.startswith("offset_")


def error_of_the_gradients(data: PageData) -> Iterator[Block]:
    """Show how far dx, dweight and dbias are from the exact gradients."""
    cases = data.cases
    backward = cases[(cases["direction"] != Direction.FORWARD) & cases["error_ulp"].notna()]
    if not len(backward):
        yield Text("No gradient was checked: the run has no measured backward case.")
        return
    yield Text(f"{status_text(backward, 'with gradients')}.")
    outputs = pd.DataFrame(
        [
            (index, output.output, output.worst_ulp, str(_status_of(output, record)))
            for index in backward.index
            if (record := data.records[index]).errors
            for output in record.errors.outputs
            if not is_exactly_zero(output)
        ],
        columns=["case", "output", "ulp", "status"],
    )
    axes = ["device", "direction", "dtype", "label"]
    outputs = outputs.join(cases[axes], on="case")
    is_unbounded = outputs["status"] == Status.OUT_OF_GUARANTEE
    keys = [*axes, "output"]
    beyond = outputs[is_unbounded].groupby(keys, observed=True)["ulp"].max().rename("beyond")
    # without any guarantee, the cell has that alone
    firsts = worst(outputs.assign(last=is_unbounded).sort_values("last"), [*keys, "last"], "ulp")
    firsts = firsts.sort_values("last", kind="stable").drop_duplicates(keys).join(beyond, on=keys)
    yield from tables_by_device(
        firsts,
        "gradients",
        "Largest error of the gradients in ulp",
        "At the scale of their row or column: of all shapes and inputs, the largest error with the "
        f"worst status among those with a guarantee. Second line: without one. {SYMBOLS_TEXT} "
        "Gradients that are exactly 0 are not counted: their ulp has no meaning.",
        _gradient_cell,
        across="output",
        order=("dx", "dweight", "dbias"),
    )


def _gradient_cell(row: Any) -> Cell:
    has_note = row.beyond >= 0 and row.status != Status.OUT_OF_GUARANTEE
    note = f"{rounded(row.beyond)} {SYMBOLS[Status.OUT_OF_GUARANTEE]}" if has_note else ""
    return replace(pill(row.status, rounded(row.ulp)), note=note)


def status_text(rows: pd.DataFrame, which: str) -> str:
    """Return "Of 9 cases WHICH none is wrong and 1 is inaccurate (native in float16 forward)"."""
    texts = []
    for status in (Status.WRONG, Status.INACCURATE):
        own = rows[rows["status"] == status]
        names = first_of(
            f"{label} in {'/'.join(some['dtype'].unique())} {'/'.join(some['direction'].unique())}"
            for (label,), some in groups(own, "label")
        )
        are = "is" if len(own) == 1 else "are"
        texts.append(f"{len(own):,} {are} {status} ({names})" if names else f"none is {status}")
    return f"Of {count(len(rows), 'case')} {which} {' and '.join(texts)}"


def _status_of(output: OutputErrors, record: Record) -> Status:
    """Return the status of an output of a record."""
    ratio = output.bound_ratio
    if ratio is not None and not ratio <= 1:
        # right with a remark, if it is only rounded more than once
        return record.status if record.status in {Status.OK, Status.INACCURATE} else Status.WRONG
    return Status.OUT_OF_GUARANTEE if ratio is None or output.vacuous_elements else Status.OK


# --- error against condition: measured points over the error bound of each class of algorithm -----

CLASSES = ("one_pass", "two_pass", "welford", "recentred", "shifted")
"""Classes of algorithms, in the order of their colours and marker shapes."""
_MARKERS = dict(zip(CLASSES, "vsDoP", strict=True))
_WIDTH_IN, _HEIGHT_IN = 9.6, 4.1
_LEAST_ULP = 2.0**-4  # an error of zero has no logarithm: it is drawn here, at the bottom edge
# Of the rows of normal numbers that the lines are about: beyond 5 standard deviations are 6 in ten
# million. Only the bound of shifted depends on it.
_DISTANCE = 5.0
_STEPS = 60  # points of a bound: smooth at the width of the page


@dataclass(frozen=True, slots=True)
class BoundLine:
    """The bound of a class of algorithms, with sums of one kind."""

    algorithm: str
    reduction: str
    statistics: str
    """Name of the dtype in which mean and variance are formed."""
    hidden: int
    dtype: str
    """Of the results."""

    @property
    def limit(self) -> float:
        """The condition number from which on nothing is guaranteed."""
        u = 2.0 ** -SIGNIFICAND_BITS[self.statistics]
        limit = condition_limit(self.algorithm, chain_length(self.hidden, self.reduction), u)
        return limit if self.algorithm != "shifted" or isfinite(self.ulp(1.0)) else 1.0

    def ulp(self, condition: float) -> float:
        """The largest error at a condition number; infinite from the limit on."""
        return largest_error_ulp(
            self.algorithm, self.reduction, self.hidden, condition,
            statistics=self.statistics, dtype=self.dtype, distance=_DISTANCE,
        )  # fmt: skip

    @property
    def words(self) -> str:
        """The class, its sums and the dtype of its statistics."""
        return f"{in_words(self.algorithm)} ({self.reduction} sums in {self.statistics})"


def _draw_condition(
    title: str, lines: pd.DataFrame, points: pd.DataFrame, bounds: Sequence[BoundLine]
) -> Figure:
    """Draw the error of y against the condition number of the inputs, over the bounds.

    Args:
        title: of the figure.
        lines: cases of one shape and dtype with a growing offset, joined by lines.
        points: cases of the same shape with other inputs.
        bounds: of the classes that the implementations declare.
    """
    both = pd.concat([lines, points])
    finite = both["y_ulp"][np.isfinite(both["y_ulp"])]
    lost = 2.0 ** SIGNIFICAND_BITS[bounds[0].dtype] if bounds else 1.0
    top = max(finite.max() if len(finite) else 1.0, lost, 4.0) * 2
    edge = top * (top / _LEAST_ULP) ** 0.05
    lines, points = (
        own.assign(height=own["y_ulp"].clip(_LEAST_ULP, edge).fillna(edge))
        for own in (lines, points)
    )
    with canvas(_WIDTH_IN, _HEIGHT_IN, left_in=0.68, right_in=1.75) as (figure, axes):
        log_scales(axes, both["condition"], (_LEAST_ULP / 2, edge * (edge / _LEAST_ULP) ** 0.03))
        level(axes, 0.5, "correctly rounded")
        if bounds:
            level(axes, lost, "no digit left")
        for bound in bounds:
            _bound(axes, bound)
        labels = _measured(axes, lines)
        for (algorithm, status), group in points.groupby(["algorithm", "status"], sort=False):
            _marks(axes, str(algorithm), str(status), group, scale=0.45)
        end_labels(axes, labels)
        axes.set_title(title)
        axes.set(xlabel="condition number of the inputs", ylabel="largest error of y, ulp")
        return figure


def _colour(algorithm: str) -> str:
    """Return a colour from the end: the first ones are those of implementations on the page."""
    known = [*CLASSES, algorithm]  # any further class comes last
    return SERIES[-1 - known.index(algorithm)]


def _bound(axes: Axes, bound: BoundLine) -> None:
    """Draw a bound up to its limit in theory, where it rises without end."""
    (low, high), (_, top) = axes.get_xlim(), axes.get_ylim()
    last = min(bound.limit, high)
    if last <= low:
        return
    # up to a millionth below the limit, where the bound leaves the axes
    steps = np.geomspace(low, last * (1 - 1e-6), _STEPS)
    heights = np.array([bound.ulp(step) for step in steps])
    known = np.isfinite(heights)
    colour, end = _colour(bound.algorithm), bound.limit < high
    axes.plot(
        [*steps[known], *([last] if end else [])], [*heights[known], *([top * 10] if end else [])],
        color=colour, lw=2.6, alpha=0.5, zorder=1.5, solid_joinstyle="round",
        gid=series_id(colour),
    )  # fmt: skip


def _measured(axes: Axes, lines: pd.DataFrame) -> list[EndLabel]:
    """Join the cases of each implementation; those of a class differ in their dashes."""
    positions: dict[str, int] = {}  # of the last line of each class
    labels = []
    by = ["algorithm", "implementation", "mode"]
    for (name, _, mode), group in lines.groupby(by, sort=False, observed=True):
        algorithm = str(name)
        colour = _colour(algorithm)
        position = positions[algorithm] = positions.get(algorithm, -1) + 1
        axes.plot(
            group["condition"], group["height"], color=colour, zorder=2,
            lw=1.1 if mode == Mode.EAGER else 0.6, ls=DASHES[position % len(DASHES)],
            gid=series_id(colour),
        )  # fmt: skip
        for status, own in group.groupby("status", sort=False):
            _marks(axes, algorithm, str(status), own)
        last = group.iloc[-1]
        labels.append((str(last["label"]), last["condition"], last["height"], colour))
    return labels


def _marks(axes: Axes, algorithm: str, status: str, rows: pd.DataFrame, scale: float = 1.0) -> None:
    """Mark cases: the shape is that of the class, and its filling is that of the status."""
    colour = _colour(algorithm)
    is_half = status == Status.INACCURATE
    face = colour if is_half or status == Status.OK else FACE
    draw = partial(axes.plot, rows["condition"], rows["height"], ls="none", gid=series_id(colour))
    draw(
        marker=_MARKERS.get(algorithm, "h"), ms=5.4 * sqrt(scale), mfc=face, mec=colour,
        mew=0.0 if status == Status.OK else 1.1, fillstyle="left" if is_half else "full",
        markerfacecoloralt=FACE, zorder=3, clip_on=False,
    )  # fmt: skip
    if status == Status.WRONG:
        draw(marker="x", ms=8 * sqrt(scale), mew=1.6, mec=INK, zorder=4)
