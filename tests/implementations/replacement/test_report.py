"""What a report of a replacement shows a reader."""

from __future__ import annotations

from torch import nn

from implementations import replace_layer_norms


def test_many_modules_with_one_reason_share_a_line() -> None:
    model = nn.Sequential(*(nn.BatchNorm1d(8) for _ in range(5)))
    shown = str(replace_layer_norms(model, "two_pass")).splitlines()
    (line,) = [each for each in shown if "BatchNorm" in each]
    assert line.startswith("  0 (")
    assert " and 3 more: " in line


def test_few_modules_have_a_line_each() -> None:
    model = nn.Sequential(*(nn.BatchNorm1d(8) for _ in range(2)))
    shown = str(replace_layer_norms(model, "two_pass")).splitlines()
    assert len([each for each in shown if "BatchNorm" in each]) == 2
