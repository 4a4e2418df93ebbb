"""The numbers of a record, each said once: how it is read, written, compared and where it is shown.

To add a metric, add a row to METRICS. The terminal, CSV, the page, the reports of CI,
trends and gates then show it, as its row says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from harness.records.record import Errors, Estimate, Latency, Memory, Record
from harness.records.text import (
    as_speed,
    bytes_text,
    interval_text,
    seconds_text,
    speed_text,
    ulp_text,
)

Unit = Literal["s", "bytes", "ulp", "ratio", "speed", "count"]
View = Literal[
    "terminal",  # the table of a run
    "summary",  # the job summary
    "brief",  # one line about a case: of progress, and of JUnit XML
    "csv",
    "frame",  # the figures and tables of the page
    "page",  # these, and the data for the page's script
    "page_interval",  # the same data, with the ends of the interval
    "trend",  # trends over the runs of a folder
    "exact",  # gates, which compare it exactly
]
"""Where a metric is shown."""
_WRITE: dict[Unit, Callable[[float], str]] = {
    "s": seconds_text, "bytes": bytes_text, "ulp": ulp_text, "ratio": "{:.3g}".format,
    "speed": speed_text, "count": "{:,.0f}".format,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a record."""

    name: str
    """Unique; ends in its unit like a field. The name of its column in the page's data."""
    title: str
    unit: Unit
    field: str
    """The field of a record that holds it, such as "latency.per_call_s", or that it is made of.
    Also the name of its column in CSV."""
    views: Mapping[View, str]
    """Where it is shown, and its heading or key there; empty if that is the title or the name."""
    derive: Callable[[Any], Estimate | float | None] | None = None
    """Makes it of that part of a record; None if ``field`` holds it."""
    better: Literal["lower", "higher", "neither"] = "lower"
    exact: bool = False
    """Whether it repeats bit by bit on one machine with the same software."""
    is_estimate: bool = False
    """Whether it has an interval."""
    note: Callable[[Any], str] = lambda record: ""
    """What follows the value, or is in its place: "in dx", "not counted"."""

    @property
    def part(self) -> str:
        """The field of a record that its value needs: errors, latency, cold, memory, ..."""
        return self.field.partition(".")[0]

    def heading(self, view: View) -> str:
        """Return how a view names it."""
        return self.views[view] or self.title

    def get(self, record: Any) -> Estimate | float | None:
        """Return the number, with its interval if it is an estimate; None if not measured."""
        part = getattr(record, self.part)
        if part is None:
            return None
        return self.derive(part) if self.derive else attrgetter(self.field)(record)

    def numbers(self, record: Any) -> tuple[float | None, ...]:
        """Return the value, followed by the ends of its interval if it is an estimate."""
        found = self.get(record)
        if isinstance(found, Estimate):
            return found.value, found.low, found.high
        return (None, None, None) if self.is_estimate else (found,)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of these numbers: the ends of "latency_s" are "latency_low_s" and so on."""
        if not self.is_estimate:
            return (self.name,)
        stem, unit = (self.name[:-2], "_s") if self.unit == "s" else (self.name, "")
        return self.name, f"{stem}_low{unit}", f"{stem}_high{unit}"

    def write(self, value: float) -> str:
        """Return a value with its unit, for people."""
        return _WRITE[self.unit](value)

    def text(self, record: Any, missing: str = "–", *, interval: bool = False) -> str:
        """Return "4.99 ulp in dx", and with an interval "1.31x [1.28x, 1.34x]"."""
        found, note = self.get(record), self.note(record)
        if found is None:
            return note or missing
        if isinstance(found, Estimate):
            text = interval_text(found, self.write) if interval else self.write(found.value)
        else:
            text = self.write(found)
        return f"{text} {note}".rstrip()


def _error_of_y(errors: Errors) -> float | None:
    return next((output.worst_ulp for output in errors.outputs if output.output == "y"), None)


def _largest_bound_ratio(errors: Errors) -> float | None:
    ratios = (output.bound_ratio for output in errors.outputs)
    return max((ratio for ratio in ratios if ratio is not None), default=None)


def _peak_ratio(memory: Memory) -> float | None:
    return memory.peak_extra_bytes / memory.minimum_bytes if memory.minimum_bytes else None


def _speed(latency: Latency) -> Estimate | None:
    return latency.reference_ratio and as_speed(latency.reference_ratio)


def _worst_output(record: Record) -> str:
    return f"in {record.errors.worst.output}" if record.errors and record.errors.outputs else ""


def _is_invalid(record: Record) -> str:
    return "(invalid)" if record.latency and not record.latency.is_valid else ""


def _is_not_counted(record: Record) -> str:
    return "not counted" if record.memory is None and record.memory_not_counted else ""


def _in(views: str, **others: str) -> dict[View, str]:
    """Return views that name a metric by its title, and others with the names that they use."""
    return dict.fromkeys(views.split(), "") | others  # type: ignore[return-value]


METRICS: tuple[Metric, ...] = (
    Metric("y_ulp", "error of y", "ulp", "errors.outputs", _in("frame"), _error_of_y,
           exact=True),
    Metric("error_ulp", "worst error", "ulp", "errors.worst.scaled_max_ulp",
           _in("terminal summary brief csv page", trend="error"),
           lambda errors: errors.worst_ulp, exact=True, note=_worst_output),
    Metric("bound_ratio", "largest error over its bound", "ratio", "errors.outputs", _in("page"),
           _largest_bound_ratio, exact=True),
    Metric("condition", "condition number", "ratio", "errors.condition_max_ratio", _in("csv page"),
           better="neither", exact=True),
    Metric("latency_s", "latency", "s", "latency.per_call_s",
           _in("terminal brief csv page page_interval", summary="time per call",
               trend="time"), is_estimate=True, note=_is_invalid),
    Metric("speed", "speed", "speed", "latency.reference_ratio",
           _in("terminal brief", summary="speed relative to native", trend="speed"), _speed,
           better="higher", is_estimate=True),
    Metric("ratio", "time over the reference's", "ratio", "latency.reference_ratio",
           _in("csv page"), is_estimate=True),
    Metric("cold_s", "latency of cold calls", "s", "cold.per_call_s", _in("csv page"),
           is_estimate=True),
    Metric("cold_ratio", "time of cold calls over the reference's", "ratio", "cold.reference_ratio",
           _in("csv"), is_estimate=True),
    Metric("copy_ratio", "share of a copy's speed", "ratio", "latency.ceiling_ratio",
           _in("csv page"), better="higher"),
    Metric("cold_copy_ratio", "share of a cold copy's speed", "ratio", "cold.ceiling_ratio",
           _in("frame"), better="higher"),
    Metric("peak_bytes", "peak memory", "bytes", "memory.peak_extra_bytes",
           _in("csv page", terminal="memory", trend="peak-memory",
               exact="bytes at the peak"), exact=True, note=_is_not_counted),
    Metric("peak_ratio", "peak memory over the size of the results", "ratio",
           "memory.peak_extra_bytes", _in("page"), _peak_ratio, exact=True),
    Metric("allocated_bytes", "allocated memory", "bytes", "memory.allocated_bytes",
           _in("csv", exact="bytes allocated"), exact=True),
    Metric("allocations", "allocated memory", "count", "memory.allocations",
           _in("", exact="allocations"), exact=True),
    Metric("saved_bytes", "memory saved for the backward", "bytes", "memory.saved_bytes",
           _in("csv page", trend="saved-memory", exact="bytes saved for the backward"), exact=True),
    Metric("minimum_bytes", "size of the results", "bytes", "memory.minimum_bytes", _in("csv"),
           better="neither", exact=True),
    Metric("operators", "operators", "count", "operators",
           _in("page", trend="operators", exact="operators per call"), exact=True),
    Metric("instructions", "instructions", "count", "instructions", _in("terminal csv page")),
)  # fmt: skip
"""Of a :class:`Record`, in the order in which they are shown."""

OUTPUT_METRICS: tuple[Metric, ...] = tuple(
    Metric(name, "error", "ratio", name, {"exact": words}, exact=True)
    for name, words in {
        "unexpected_nonfinite": "elements not finite",
        "vacuous_elements": "elements without an error bound",
        "scaled_max_ulp": "largest scaled ulp",
        "scaled_p99_ulp": "99th percentile of scaled ulp",
        "scaled_mean_ulp": "mean scaled ulp",
        "normwise_ratio": "worst row's error over its norm",
        "max_abs": "largest absolute error",
        "bound_ratio": "largest error over its bound",
    }.items()
)
"""Of one :class:`OutputErrors` of a record, which gates compare. Not raw_max_ulp, which any change
moves at random: it is unbounded near zero for good kernels."""


def metrics_in(*views: View) -> tuple[Metric, ...]:
    """Return the metrics that at least one of the views shows, in order."""
    return tuple(metric for metric in METRICS if any(view in metric.views for view in views))


def brief(record: Record) -> str:
    """Return "worst error 1.13 ulp in y, latency 1 ms, speed 1.00x", as far as measured."""
    measured = (metric for metric in metrics_in("brief") if metric.get(record) is not None)
    return ", ".join(f"{metric.heading('brief')} {metric.text(record)}" for metric in measured)
