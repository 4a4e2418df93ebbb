"""Settings: sizes and layouts at which contract checks run, on both sides of kernels' thresholds.

A kernel takes another path for long rows, for many rows, for a tail that fills no vector, for an x
with three axes or with strides. A workspace or a saved tensor may be wrong on one path alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from harness.records import Case

__all__ = [
    "BLOCK",
    "EVERY_SETTING",
    "LONG",
    "LONG_TAIL",
    "ONE_ROW",
    "PADDED",
    "PATHS",
    "SMALL",
    "TAIL",
    "TWO_AXES",
    "Setting",
    "at",
    "settings_of",
    "words_of",
]

Check = TypeVar("Check", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Setting:
    """The shape of x, its normalized axes and its layout; dtype and device are the caller's."""

    shape: tuple[int, ...]
    normalized_dims: int = 1
    layout: str = "contiguous"

    def of(self, case: Case) -> Case:
        """Return ``case`` at this setting."""
        return replace(
            case, shape=self.shape, normalized_dims=self.normalized_dims, layout=self.layout
        )


SMALL = Setting((6, 32))
"""N a multiple of a vector and of a warp; few rows."""
TAIL = Setting((131, 37))
"""N a prime; more than 128 rows."""
BLOCK = Setting((2, 35, 64))
"""N a multiple of 64; more than 64 rows; an x of three axes."""
LONG = Setting((3, 2048))
"""N a power of two over 1,024, the most threads of a block."""
LONG_TAIL = Setting((2, 3, 4099))
"""N odd and over 4,096, the longest row that many kernels keep in registers."""
LARGE = Setting((130, 500))
"""Almost 2^16 elements, the most with exact outputs; PyTorch uses two threads from 2^15 on."""
TWO_AXES = Setting((3, 4, 6, 10), normalized_dims=2)
"""Two normalized axes, two others; N a multiple of 4 and not of 8."""
PADDED = Setting((66, 40), layout="padded_rows")
"""Rows that are contiguous, in an x that is not."""
ONE_ROW = Setting((1, 48))
"""No sum over rows: dbias equals dy."""
TRANSPOSED = Setting((9, 2, 52), layout="transposed")
"""Elements of a row that are far apart."""

PATHS = (SMALL, TAIL, BLOCK, LONG_TAIL, TWO_AXES, PADDED)
"""One setting for each threshold."""
EVERY_SETTING = (SMALL, TAIL, BLOCK, LONG, LONG_TAIL, LARGE, TWO_AXES, PADDED, TRANSPOSED)
"""Every size and layout."""


def at(*settings: Setting) -> Callable[[Check], Check]:
    """State the settings at which a contract check runs, as an attribute of the check."""

    def state(check: Check) -> Check:
        vars(check)["settings"] = settings
        return check

    return state


def settings_of(check: Callable[..., object]) -> tuple[Setting, ...]:
    """Return the settings of a check; :data:`SMALL` alone if it states none."""
    stated: tuple[Setting, ...] = vars(check).get("settings", (SMALL,))
    return stated


def words_of(case: Case) -> str:
    """Return the setting of a case in words: "3x4x60 (2 normalized axes, padded_rows)"."""
    details = [f"{case.normalized_dims} normalized axes"] if case.normalized_dims > 1 else []
    details += [case.layout] if case.layout != "contiguous" else []
    shape = "x".join(map(str, case.shape))
    return f"{shape} ({', '.join(details)})" if details else shape
