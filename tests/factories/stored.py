"""Records of every kind to store, drawn and written out, and whether two are the same."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from math import inf, nan
from pathlib import Path
from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st

from factories.compared_runs import SHARED, make_record, with_error
from factories.results_factory import make_environment, make_run
from harness.records import Case, Cost, Environment, Record, Run, Status
from harness.store import Journal, Results

numbers = st.floats()  # NaN and the infinities too: an error may be infinite
counts = st.integers(0, 2**62)
# surrogates are half characters: no valid text, and no UTF-8 can hold them
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def several(strategy: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=most).map(tuple)


def strategy_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, from the type alone, so that no field can be forgotten."""
    if type(None) in get_args(annotation):
        (inner,) = (part for part in get_args(annotation) if part is not type(None))
        return st.none() | strategy_of(inner)
    if getattr(annotation, "__origin__", None) is tuple:
        items = get_args(annotation)
        if items[-1] is not Ellipsis:
            return st.tuples(*map(strategy_of, items))
        return several(strategy_of(items[0]))
    if is_dataclass(annotation):
        hints = get_type_hints(annotation)
        return st.builds(
            annotation,
            **{field.name: strategy_of(hints[field.name]) for field in fields(annotation)},
        )
    if issubclass(annotation, StrEnum):
        return st.sampled_from(annotation)
    return {str: texts, int: counts, float: numbers, bool: st.booleans()}[annotation]


results = st.builds(
    lambda records, runs, environments: Results(
        records=records,
        runs=runs,
        environments={environment.fingerprint: environment for environment in environments},
    ),
    several(strategy_of(Record)),
    several(strategy_of(Run), 2),
    several(strategy_of(Environment), 2),
)

CASE = Case(implementation="native", shape=(8, 64))
ENVIRONMENT = make_environment(
    cpu="Ünïcode CPU \N{GREEK SMALL LETTER MU}", memory_bytes=None, compiler=None, git_commit=None
)
RUN = make_run(planned=2)
FULL = replace(
    with_error(
        make_record(CASE, [1.0] * 100, environment=ENVIRONMENT, status=Status.WRONG, reason="µ"),
        scaled_max_ulp=inf,
        scaled_p99_ulp=nan,
        scaled_mean_ulp=None,
        max_abs=1e-300,
    ),
    warnings=(SHARED,),
    cost=Cost(total_s=1.0, implementation_s=0.5, oracle_s=0.25, sampling_s=0.125),
)
BARE = Record(
    case=replace(CASE, seed=1), environment=ENVIRONMENT.fingerprint, status=Status.CRASHED
)
RESULTS = Results(
    records=(FULL, BARE), runs=(RUN,), environments={ENVIRONMENT.fingerprint: ENVIRONMENT}
)


def journalled(path: Path, *entries: Any) -> list[int]:
    """Add entries to a journal; return where in the file each begins."""
    with Journal(path) as journal:
        return [journal.add(entry) for entry in entries]


def same(one: object, other: object) -> bool:
    """Equality in which NaN equals NaN."""
    return repr(one) == repr(other)
