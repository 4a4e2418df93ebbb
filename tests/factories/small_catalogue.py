"""A part of the quick catalogue of cases, for kernels that are slow to run."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from math import prod

import pytest

from harness.verify.cases.catalogue import QUICK


def use_small_catalogue(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    """Leave out the cases of the quick catalogue with more than ``largest`` elements."""
    small = [
        replace(group, shapes=tuple(shape for shape in group.shapes if prod(shape) <= largest))
        for group in QUICK
    ]
    # harness.verify has a function of the name of this module
    monkeypatch.setattr(import_module("harness.verify.verify"), "QUICK", small)
