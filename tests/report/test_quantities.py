"""Numbers as people read them."""

from math import inf, nan

import pytest

from harness.report.quantities import (
    bytes_text,
    count,
    power_of_ten,
    rounded,
    seconds,
    speed,
    ulps,
)


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


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (seconds, 2.5e-6, "2.5 µs"),
        (seconds, 0.0123, "12.3 ms"),
        (seconds, 1234.5, "20 min 34 s"),
        (seconds, 3e-11, "0.03 ns"),
        (seconds, None, "–"),
        (bytes_text, 0, "0 B"),
        (bytes_text, 1536, "1.5 KiB"),
        (bytes_text, 8 << 30, "8 GiB"),
        (ulps, inf, "not finite"),
        (ulps, 0.5, "0.5 ulp"),
        (speed, 1.254, "1.25×"),
        (speed, 0.0432, "0.0432×"),
        (speed, nan, "–"),
        (power_of_ten, 1000.0, "1,000"),
        (power_of_ten, 1e6, "10⁶"),
        (power_of_ten, 2e5, "2 × 10⁵"),
    ],
)
def test_units(write: object, value: float | None, text: str) -> None:
    assert callable(write)
    assert write(value) == text


def test_one_is_singular() -> None:
    assert (count(1, "case"), count(2000, "case")) == ("1 case", "2,000 cases")
