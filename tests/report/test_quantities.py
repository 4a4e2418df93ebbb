"""Numbers as the page writes them."""

from math import inf, nan

import pytest

from harness.report.quantities import power_of_ten, rounded, speed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (0.12345, "0.123"),
        (999.6, "1,000"),
        (12345.0, "12,300"),
        (99999.0, "1 × 10⁵"),
        (5.3e11, "5.3 × 10¹¹"),
        (1.5e-7, "1.5 × 10⁻⁷"),
        (-2.5, "-2.5"),
        (inf, "∞"),
        (nan, "–"),
        (None, "–"),
    ],
)
def test_three_digits(value: float | None, text: str) -> None:
    assert rounded(value) == text


@pytest.mark.parametrize(("value", "text"), [(1.254, "1.25x"), (0.0432, "0.0432x"), (nan, "–")])
def test_a_speed(value: float, text: str) -> None:
    assert speed(value) == text


@pytest.mark.parametrize(("value", "text"), [(1e3, "1,000"), (1e6, "10⁶"), (2e5, "2 × 10⁵")])
def test_a_tick_label(value: float, text: str) -> None:
    assert power_of_ten(value) == text
