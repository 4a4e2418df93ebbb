"""Numbers as the page writes them."""

from math import inf, nan

import pytest

from harness.report.document import rounded


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
