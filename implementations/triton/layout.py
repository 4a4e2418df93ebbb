"""How the work of a kernel is divided: rows and columns per program, and warps.

A fixed table by the length of a row and the size of its elements, so that the same call always
runs the same code. Only the number of programs depends on the number of rows: the bits of y and dx
of a row do not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

LONGEST = (1 << 31) - (1 << 16)
"""Most elements per row, and rows, for 32-bit offsets; a last block may exceed the row."""
LONG_BLOCK = 8192
"""Elements summed by one program in a row that no program can hold."""
PARTS_LANES = 64
"""Least number of running sums over the rows for dweight and dbias, if there are as many rows."""

ROWS_PER_PART = 16
"""Least number of rows of a part of dweight, beyond the first parts; the parts are then an eighth
of the bytes that must be moved, at most."""
SHORT = 512
"""Longest row with at most 8 elements per thread of 4 warps (a first choice, not measured)."""
LEAVES_APART = 8
"""Elements that a thread adds up first if they are not adjacent (a first choice, not measured)."""

_REGISTERS = 64 << 10  # of a multiprocessor, from sm_80 to sm_120
_SHARED_BYTES = 200 << 10  # of the 227 KiB per program on Hopper; the rest is left to the compiler


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a kernel is started."""

    rows: int = 1
    """Rows of a tile."""
    columns: int
    """Columns of a tile: a power of two."""
    warps: int
    """Warps of 32 threads per program."""
    stages: int = 1
    """Tiles that are fetched from memory at once; 1 means no prefetching."""
    programs: int = 0
    """Programs per multiprocessor, which process tiles in turn, but at least enough for
    :data:`PARTS_LANES`; 0 means one program per tile."""

    @property
    def registers(self) -> int | None:
        """Most registers per thread, so that a multiprocessor holds all its programs at once.

        A program that has to wait for another one to end would double the time. None if programs
        are replaced tile by tile.
        """
        if not self.programs:
            return None
        share = _REGISTERS // (32 * self.warps * self.programs)
        return min(share // 8 * 8, 255)  # they are allocated by eights

    def grid(self, rows: int, multiprocessors: int) -> int:
        """Return how many programs to start for that many rows."""
        tiles = -(-rows // self.rows)
        if not self.programs:
            return tiles
        # each writes a part of dweight and dbias, which is read again
        staying = min(self.programs * multiprocessors, rows // ROWS_PER_PART)
        return min(tiles, max(staying, PARTS_LANES // self.rows, 1))


def _by_columns(*layouts: Layout) -> dict[int, Layout]:
    return {layout.columns: layout for layout in layouts}


# By bytes per element, then by columns. Rows shorter than the shortest entry share a tile of that
# size. Chosen by the registers that the compiler needs, not yet measured: about twice as many bytes
# are on their way to a multiprocessor as bandwidth times latency asks for
# (experiments/triton_tuning/README.md).
_NARROW = (
    Layout(rows=4, columns=512, warps=2),
    Layout(columns=1024, warps=1),
    Layout(columns=2048, warps=2),
    Layout(columns=4096, warps=4),
    Layout(columns=8192, warps=8),
    Layout(columns=16384, warps=16),
)
FORWARD: dict[int, dict[int, Layout]] = {
    2: _by_columns(*_NARROW, Layout(columns=32768, warps=32)),
    # one warp would put a part of its row on the stack on sm_100
    4: _by_columns(*_NARROW, Layout(columns=1024, warps=2)),
    8: _by_columns(
        Layout(rows=2, columns=512, warps=4),
        Layout(columns=1024, warps=4),
        Layout(columns=2048, warps=8),
        Layout(columns=4096, warps=16),
        Layout(columns=8192, warps=16),
    ),
}
# A program holds dy, x, weight and two running sums at once. It processes many tiles and prefetches
# the next ones. If the sums do not fit, the row is too long.
BACKWARD: dict[int, dict[int, Layout]] = {
    2: _by_columns(
        Layout(rows=2, columns=512, warps=4, stages=3, programs=5),
        Layout(columns=1024, warps=4, stages=3, programs=6),
        Layout(columns=2048, warps=4, stages=3, programs=4),
        Layout(columns=4096, warps=8, stages=3, programs=2),
        Layout(columns=8192, warps=16, stages=3, programs=1),
    ),
    4: _by_columns(
        Layout(rows=2, columns=512, warps=4, stages=3, programs=4),
        Layout(columns=1024, warps=4, stages=3, programs=4),
        Layout(columns=2048, warps=4, stages=2, programs=4),
        Layout(columns=4096, warps=8, stages=2, programs=2),
        Layout(columns=8192, warps=16, stages=2, programs=1),
    ),
    8: _by_columns(
        Layout(rows=2, columns=512, warps=4, stages=2, programs=4),
        Layout(columns=1024, warps=4, stages=2, programs=4),
        Layout(columns=2048, warps=8, stages=2, programs=2),
        Layout(columns=4096, warps=16, stages=2, programs=1),
    ),
}

# For rows too long for the tables: the kernels that read a block for its sums, add up the sums of a
# row, read a block again and write y, and form all gradients in some columns. First choices, not
# measured: 16 elements per thread for one block, 8 if the program also holds running sums.
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
    """Return the layout of the backward, as :func:`forward` does for the forward."""
    return _of_length(BACKWARD[itemsize], hidden, 2 * itemsize)


def gradient_parts(rows: int, hidden: int, multiprocessors: int) -> int:
    """Return how many parts of dweight the gradient kernel of long rows writes.

    A program takes some columns and every n-th row. Its sums are compensated, so the error does not
    depend on the number of its rows.
    """
    blocks = -(-hidden // GRADIENTS.columns)
    return min(rows, max(1, GRADIENTS.programs * multiprocessors // blocks))


def adding(parts: int) -> Layout:
    """Return the layout of the kernel that adds up that many parts."""
    # trade-off: few steps, and many programs
    rows = min(1 << (parts - 1).bit_length(), 128)
    return Layout(rows=rows, columns=max(32, min(256, 4096 // rows)), warps=8)


def _of_length(table: Mapping[int, Layout], hidden: int, bytes_each: int) -> Layout | None:
    width = 1 << (hidden - 1).bit_length()
    if width > max(table):
        return None
    layout = table[max(width, min(table))]
    if width < layout.columns:
        layout = replace(layout, rows=layout.rows * layout.columns // width, columns=width)
    # prefetch as many tiles as fit into shared memory
    tile = layout.rows * layout.columns * bytes_each
    return replace(layout, stages=min(layout.stages, 1 + _SHARED_BYTES // tile))
