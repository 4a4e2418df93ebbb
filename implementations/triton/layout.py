"""What one program of a kernel does: how many rows and columns at once, by how many warps.

A fixed table by the length of a row and the size of its elements, so that the same call always
runs the same code. Nothing but the number of programs depends on the number of rows: the bits of
y and dx of a row do not depend on the batch it comes in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

__all__ = [
    "BACKWARD",
    "FORWARD",
    "GRADIENTS",
    "JOINING",
    "LEAVES_APART",
    "LONGEST",
    "LONG_BLOCK",
    "PARTS_LANES",
    "SHORT",
    "SUMMING",
    "WRITING",
    "Layout",
    "adding",
    "backward",
    "columns",
    "forward",
    "gradient_parts",
]

LONGEST = (1 << 31) - (1 << 16)
"""Elements of a row, and rows, that 32 bits count; the rest is for a block that reaches beyond."""
LONG_BLOCK = 8192
"""Elements of a row too long for a program to hold that are summed by one program."""
PARTS_LANES = 64
"""Running sums over the rows for dweight and dbias, at the least, where there are as many rows."""

SHORT = 512
"""Ours: so short a row has no more than 8 elements with one thread of 4 warps."""
LEAVES_APART = 8
"""Ours: elements of a thread that it adds up first where its elements are no neighbours."""

_SHARED_BYTES = 200 << 10  # ours: of the 227 KiB that a program may use on Hopper


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a kernel is started."""

    rows: int = 1
    """Rows of a tile."""
    columns: int
    """Columns of a tile: a power of two."""
    warps: int
    """Of 32 threads, for one program."""
    stages: int = 1
    """Tiles on their way from memory at once; 1 leaves that to the other programs."""
    programs: int = 0
    """Programs for each multiprocessor, which take tiles in turn, but enough of them for
    :data:`PARTS_LANES`; 0 is a program for each tile."""
    sums_apart: bool = False
    """Whether dweight and dbias are left to another kernel, which reads dy and x once more."""

    def grid(self, rows: int, multiprocessors: int) -> int:
        """Return how many programs to start for that many rows."""
        tiles = -(-rows // self.rows)
        staying = max(self.programs * multiprocessors, PARTS_LANES // self.rows)
        return min(tiles, staying) if self.programs else tiles


def _by_columns(*layouts: Layout) -> dict[int, Layout]:
    return {each.columns: each for each in layouts}


# Rows too short for an entry share a tile of as many elements as the shortest entry has. By bytes
# an element, then by columns. Ours: 16 elements a thread, two or four 16-byte reads on their way
# for each, until a program has the 16 warps that leave a thread 128 registers, or 32 and 64.
_NARROW = (
    Layout(rows=4, columns=512, warps=4),
    Layout(columns=1024, warps=2),
    Layout(columns=2048, warps=4),
    Layout(columns=4096, warps=8),
    Layout(columns=8192, warps=16),
    Layout(columns=16384, warps=16),
)
FORWARD: dict[int, dict[int, Layout]] = {
    2: _by_columns(*_NARROW, Layout(columns=32768, warps=32)),
    4: _by_columns(*_NARROW),
    8: _by_columns(
        Layout(rows=2, columns=512, warps=4),
        Layout(columns=1024, warps=4),
        Layout(columns=2048, warps=8),
        Layout(columns=4096, warps=16),
        Layout(columns=8192, warps=16),
    ),
}
# dy, x, weight and two running sums are held at once; a program stays for many tiles, and the next
# are fetched while it works. Where the sums do not fit they are left to another kernel.
_STAYING = (
    Layout(rows=2, columns=512, warps=4, stages=2, programs=4),
    Layout(columns=1024, warps=4, stages=2, programs=4),
    Layout(columns=2048, warps=4, stages=2, programs=4),
    Layout(columns=4096, warps=8, stages=2, programs=2),
    Layout(columns=8192, warps=16, stages=2, programs=1),
    Layout(columns=16384, warps=16, stages=2, programs=1, sums_apart=True),
)
BACKWARD: dict[int, dict[int, Layout]] = {
    2: _by_columns(*_STAYING),
    4: _by_columns(*_STAYING),
    8: _by_columns(
        Layout(rows=2, columns=512, warps=4, stages=2, programs=4),
        Layout(columns=1024, warps=4, stages=2, programs=4),
        Layout(columns=2048, warps=8, stages=2, programs=2),
        Layout(columns=4096, warps=16, stages=2, programs=1),
    ),
}
_COLUMNS = Layout(rows=16, columns=128, warps=4, stages=2)
_PROGRAMS = 4  # ours: of 4 warps, for each multiprocessor

# Of rows too long for the tables: what reads a block for its sums, what adds up those of a row,
# what reads a block again and writes y, and what forms all gradients in some columns. Ours: 16
# elements a thread where a program holds one block, 8 where it also holds running sums.
SUMMING = Layout(columns=LONG_BLOCK, warps=16)
JOINING = Layout(columns=1024, warps=4)
WRITING = Layout(columns=2048, warps=4)
GRADIENTS = Layout(columns=1024, warps=4, stages=2, programs=8)


def forward(hidden: int, itemsize: int) -> Layout | None:
    """Return the layout of the forward; None if no program can hold such a row.

    Args:
        hidden: elements of a row.
        itemsize: bytes of an element of x.
    """
    return _of_length(FORWARD[itemsize], hidden, itemsize)


def backward(hidden: int, itemsize: int) -> Layout | None:
    """Return the layout of the backward, as :func:`forward` does for its own.

    It is that of all gradients, or unless it holds the sums of dx alone.
    """
    return _of_length(BACKWARD[itemsize], hidden, 2 * itemsize)


def columns(rows: int, hidden: int, multiprocessors: int) -> tuple[Layout, int]:
    """Return the layout of the kernel that forms parts of dweight alone, and how many parts.

    A program takes some columns and every so many rows, Layout.rows of them side by side. There
    are enough parts for :data:`PARTS_LANES` running sums, and for every multiprocessor to be busy.
    """
    blocks = -(-hidden // _COLUMNS.columns)
    wanted = max(PARTS_LANES // _COLUMNS.rows, _PROGRAMS * multiprocessors // blocks)
    return _COLUMNS, min(_COLUMNS.grid(rows, multiprocessors), wanted)


def gradient_parts(rows: int, hidden: int, multiprocessors: int) -> int:
    """Return how many parts of dweight the kernel of all gradients of long rows leaves.

    A program takes some columns and every so many rows, and loses nothing of what it adds up: the
    number of its rows does not matter to the error.
    """
    blocks = -(-hidden // GRADIENTS.columns)
    return min(rows, max(1, GRADIENTS.programs * multiprocessors // blocks))


def adding(parts: int) -> Layout:
    """Return the layout of the kernel that adds up that many parts."""
    rows = min(1 << (parts - 1).bit_length(), 128)  # ours: few steps, and many programs
    return Layout(rows=rows, columns=max(32, min(256, 4096 // rows)), warps=8)


def _of_length(table: Mapping[int, Layout], hidden: int, bytes_each: int) -> Layout | None:
    width = 1 << (hidden - 1).bit_length()
    if width > max(table):
        return None
    layout = table[max(width, min(table))]
    if width < layout.columns:
        layout = replace(layout, rows=layout.rows * layout.columns // width, columns=width)
    # as many tiles on their way as fit into shared memory
    tile = layout.rows * layout.columns * bytes_each
    return replace(layout, stages=min(layout.stages, 1 + _SHARED_BYTES // tile))
