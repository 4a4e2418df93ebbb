"""A part of the quick catalogue of cases, for kernels and tests that would be slow."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from math import prod

import pytest

from harness.verify.cases.catalogue import QUICK, Group


def use_small_catalogue(monkeypatch: pytest.MonkeyPatch, largest: int) -> list[Group]:
    """Leave out the cases with more than ``largest`` elements; return the groups that remain."""
    small = [
        replace(group, shapes=tuple(shape for shape in group.shapes if prod(shape) <= largest))
        for group in QUICK
    ]
    # harness.verify has a function of the name of this module
    monkeypatch.setattr(import_module("harness.verify.verify"), "QUICK", small)
    return small
