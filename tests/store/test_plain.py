"""Plain values become records, or are refused."""

from __future__ import annotations

from dataclasses import make_dataclass

import pytest

from harness.records import Status
from harness.store.plain import from_plain


def test_a_field_with_a_default_may_be_absent_and_another_may_not() -> None:
    pair = make_dataclass("Pair", [("a", int), ("b", int, 7)])
    assert from_plain(pair, {"a": 1}) == pair(1, 7)
    with pytest.raises(KeyError):
        from_plain(pair, {"b": 1})


def test_an_unknown_member_is_refused() -> None:
    with pytest.raises(ValueError, match="splendid"):
        from_plain(Status, "splendid")
