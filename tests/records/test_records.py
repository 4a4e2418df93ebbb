"""Cases and environments: stable ids, derived shapes, one fingerprint per machine; errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from enum import StrEnum
from math import inf, nan

import pytest
from factories.compared_runs import make_record
from factories.results_factory import make_environment

from harness.records import (
    Case,
    Direction,
    Environment,
    Estimate,
    Mode,
    as_speed,
    bytes_text,
    count,
    install_extra,
    interval_text,
    percent_text,
    seconds_text,
    shape_text,
    speed_text,
    ulp_text,
)
from implementations import contract

CASE = Case(implementation="native", shape=(8, 64))
ENVIRONMENT = make_environment()


def test_an_id_never_changes() -> None:
    assert CASE.id == "native/forward/8x64/float32/normal"
    other = Case(
        implementation="pkg.module:norm",
        shape=(4, 3, 5),
        normalized_dims=2,
        dtype="bfloat16",
        param_dtype="float32",
        device="cuda",
        distribution="offset_1e3",
        layout="padded_rows",
        direction=Direction.FORWARD_BACKWARD,
        mode=Mode.COMPILED,
        seed=3,
    )
    assert other.id == (
        "pkg.module:norm/forward+backward/4x3x5/bfloat16/offset_1e3/compiled/cuda/dims=2"
        "/params=float32/layout=padded_rows/seed=3"
    )


def other_values(value: object) -> list[object]:
    if isinstance(value, StrEnum):
        return [member for member in type(value) if member is not value]
    if isinstance(value, tuple):
        return [(64, 8), (8, 8, 8)]
    return [value + 1 if isinstance(value, int | float) else f"other_{value}"]


def test_every_field_of_a_case_shows_in_its_id() -> None:
    changed = [
        replace(CASE, **{field.name: other})  # type: ignore[arg-type]
        for field in fields(Case)
        for other in other_values(getattr(CASE, field.name))
    ]
    cases = [CASE, *changed, replace(CASE, dtype="float64", param_dtype="float64")]
    assert len({case.id for case in cases}) == len(cases) > len(fields(Case))


def test_the_fingerprint_changes_only_with_what_can_change_speed() -> None:
    names = {"git_commit", "git_commit_utc", "git_dirty", "repository_url", "load_average"}
    names |= {"memory_bytes"}
    capped = replace(ENVIRONMENT.gpus[0], power_limit_w=200.0)
    for field in fields(Environment):
        for other in ((), (capped,)) if field.name == "gpus" else (None,):
            changed = replace(ENVIRONMENT, **{field.name: other})  # type: ignore[arg-type]
            is_same = changed.fingerprint == ENVIRONMENT.fingerprint
            assert is_same is (field.name in names), field.name


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    # a golden value: files written by different processes are joined by it
    assert ENVIRONMENT.fingerprint == "abec6be1e9bd"


# --- the error of the worst output ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("dx", "output", "worst_ulp"),
    [
        ({}, "dx", 3.0),
        ({"scaled_max_ulp": 1.0}, "y", 2.0),
        ({"scaled_max_ulp": nan}, "dx", inf),
        ({"unexpected_nonfinite": 1}, "dx", inf),
    ],
)
def test_the_worst_output_has_the_largest_scaled_error(
    dx: dict[str, float], output: str, worst_ulp: float
) -> None:
    """An error of 2 ulp in y, and of 3 or as the test says in dx."""
    errors = make_record().errors
    y = replace(errors.outputs[0], scaled_max_ulp=2.0)
    other = replace(y, output="dx", **({"scaled_max_ulp": 3.0} | dx))  # type: ignore[arg-type]
    record = make_record(errors=replace(errors, outputs=(y, other)))
    assert (record.errors.worst.output, record.worst_ulp) == (output, worst_ulp)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (seconds_text, 2.5e-6, "2.5 µs"),
        (seconds_text, 999.9e-9, "1 µs"),
        (seconds_text, 119.6, "2 min 0 s"),
        (bytes_text, 1536, "1.5 KiB"),
        (ulp_text, 0.5, "0.5 ulp"),
        (ulp_text, nan, "not finite"),
        (percent_text, 0.00314, "0.31 %"),
        (shape_text, (64, 768), "64x768"),
        (speed_text, 12.34, "12.3x"),
        (speed_text, inf, "unknown"),
        (interval_text, Estimate(value=2.0, low=0.0, high=inf), "2.00x [0x, ∞]"),
    ],
)
def test_a_quantity_has_few_digits_and_its_unit(
    write: Callable[[object], str], value: object, text: str
) -> None:
    assert write(value) == text


def test_a_speed_is_the_inverse_of_a_time_and_its_interval_is_turned_round() -> None:
    speed = as_speed(Estimate(value=0.8, low=0.5, high=1.0, confidence=0.9))
    assert speed == Estimate(value=1.25, low=1.0, high=2.0, confidence=0.9)


def test_one_is_singular() -> None:
    assert (count(1, "case"), count(2000, "case")) == ("1 case", "2,000 cases")


def test_harness_and_implementations_name_an_extra_alike() -> None:
    assert install_extra("ray") == contract.install_extra("ray")


# --- metrics -------------------------------------------------------------------------------------
