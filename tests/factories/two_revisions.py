"""Files of a base revision, and of this one."""

from __future__ import annotations

from collections.abc import Callable

from harness.regression.revision import Checkout

Open = Callable[[dict[str, str], dict[str, str]], Checkout]
"""Makes a repository of files, then changes them; returns a checkout of the first."""

CONTRACT = """
from dataclasses import dataclass
from enum import StrEnum

class Algorithm(StrEnum):
    ONE_PASS = "one_pass"
    KAHAN = "kahan"

class UnsupportedError(Exception):
    pass

@dataclass(frozen=True)
class Implementation:
    name: str
    function: object
    algorithm: Algorithm
    motto: str = "of no use now"

def f(x, *arguments):
    raise UnsupportedError("not on a Sunday")

mine = Implementation("f", f, Algorithm.ONE_PASS)
unknown = Implementation("f", f, Algorithm.KAHAN)
"""
