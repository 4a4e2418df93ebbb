"""Speeds relative to native: higher is faster."""

from math import inf

import pytest

from harness.records import Estimate
from harness.records.text import as_speed, speed_interval_text, speed_text


def test_a_speed_is_the_inverse_of_a_time_and_its_interval_is_turned_round() -> None:
    speed = as_speed(Estimate(value=0.8, low=0.5, high=1.0, confidence=0.9))
    assert speed == Estimate(value=1.25, low=1.0, high=2.0, confidence=0.9)
    assert speed_interval_text(speed) == "1.25x [1.00x, 2.00x]"


def test_an_interval_without_ends() -> None:
    speed = as_speed(Estimate(value=0.5, low=0.0, high=inf))
    assert speed_interval_text(speed) == "2.00x [0x, ∞]"


@pytest.mark.parametrize(
    ("speed", "text"),
    [(1.0, "1.00x"), (1.314, "1.31x"), (12.34, "12.3x"), (0.0123456, "0.0123x"), (inf, "unknown")],
)
def test_a_speed_has_three_digits(speed: float, text: str) -> None:
    assert speed_text(speed) == text
