"""Quantities as people read them."""

from collections.abc import Callable
from math import inf, nan

import pytest

from harness.records.text import (
    bytes_text,
    count,
    install_extra,
    percent_text,
    seconds_text,
    shape_text,
    ulp_text,
)
from implementations import contract


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (seconds_text, 2.5e-6, "2.5 µs"),
        (seconds_text, 0.0123, "12.3 ms"),
        (seconds_text, 999.9e-9, "1 µs"),
        (seconds_text, 0.9999, "1 s"),
        (seconds_text, 119.6, "2 min 0 s"),
        (seconds_text, 1234.5, "20 min 34 s"),
        (seconds_text, 3e-11, "0.03 ns"),
        (seconds_text, inf, "inf s"),
        (bytes_text, 0, "0 B"),
        (bytes_text, 1536, "1.5 KiB"),
        (bytes_text, 8 << 30, "8 GiB"),
        (ulp_text, 0.5, "0.5 ulp"),
        (ulp_text, inf, "not finite"),
        (ulp_text, nan, "not finite"),
        (percent_text, 0.25, "25 %"),
        (percent_text, 0.00314, "0.31 %"),
        (percent_text, 0.996, "100 %"),
        (percent_text, -12.5, "-1,250 %"),
        (shape_text, (64, 768), "64x768"),
        (shape_text, (), "scalar"),
    ],
)
def test_a_quantity_has_few_digits_and_its_unit(
    write: Callable[[object], str], value: object, text: str
) -> None:
    assert write(value) == text


def test_one_is_singular() -> None:
    assert (count(1, "case"), count(2000, "case")) == ("1 case", "2,000 cases")
    assert count(2, "match", "matches") == "2 matches"


def test_harness_and_implementations_name_an_extra_alike() -> None:
    assert install_extra("ray") == contract.install_extra("ray")
    assert "pip install -e '.[ray]'" in install_extra("ray")
