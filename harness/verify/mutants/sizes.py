"""Mutants that break the contract beyond a threshold of a size, or in one layout, alone.

Kernels choose another path there, with another workspace or other saved tensors. Below the
threshold they are right, and so they are to every check that runs at one small size.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from harness.verify.mutants import graph, interaction, state
from harness.verify.mutants.arguments import LayerNormCall
from harness.verify.mutants.mutant import (
    RECORDING,
    CheckKind,
    Mutant,
    Stateful,
    mutant,
)

_BLOCK = 1024  # the most threads of a block
_ROWS = 128  # the rows of a common tile
_VECTOR, _WARPS = 4, 64  # elements of a vector load, of two warps
_BATCHED = 3  # axes of an x of batch, sequence and features


class _Sometimes(Stateful):
    """Another mutant in the calls that :meth:`takes` names, right in the others."""

    base: ClassVar[Mutant]

    def __init__(self) -> None:
        self._wrong = self.base.fresh()

    def y(self, call: LayerNormCall) -> Tensor:
        return call.by(self._wrong) if self.takes(call) else call.y

    def takes(self, call: LayerNormCall) -> bool:
        """Whether the call takes the wrong path."""
        raise NotImplementedError


class _OutputBufferReusedForLongRows(_Sometimes):
    """Returns the same memory from every call with rows over 1,024 elements."""

    base = state.output_buffer_reused

    def takes(self, call: LayerNormCall) -> bool:
        return call.x.shape[-1] > _BLOCK


class _GradientBufferReusedForATail(_Sometimes):
    """Returns dweight in the same memory every time where the last axis is no multiple of 4."""

    base = graph.gradient_buffer_reused

    def takes(self, call: LayerNormCall) -> bool:
        return call.x.shape[-1] % _VECTOR > 0


class _StatisticsOfTheLatestForwardOfManyRows(_Sometimes):
    """Keeps mean and rstd in memory that the next forward overwrites, if x has over 128 rows."""

    base = interaction.statistics_of_the_latest_forward

    def takes(self, call: LayerNormCall) -> bool:
        return call.x.shape[0] > _ROWS


class _AnotherGradientWhenRecordedForWholeWarps(_Sometimes):
    """Halves dx where the backward is recorded and the last axis is a multiple of 64."""

    base = interaction.another_gradient_when_recorded

    def takes(self, call: LayerNormCall) -> bool:
        return call.x.shape[-1] % _WARPS == 0


class _UsedUpByTheBackwardOfSeveralAxes(_Sometimes):
    """Overwrites what a second backward needs where several axes are normalised."""

    base = graph.used_up_by_the_backward

    def takes(self, call: LayerNormCall) -> bool:
        return len(call.normalized_shape) > 1


class _FrozenWeightStopsDxOfABatch(_Sometimes):
    """Returns zeros as dx where weight requires no gradient and x has three axes."""

    base = graph.frozen_weight_stops_dx

    def takes(self, call: LayerNormCall) -> bool:
        return call.x.dim() == _BATCHED


class _FrozenXStopsDweightOfStridedRows(_Sometimes):
    """Returns zeros as dweight where x requires no gradient and is not contiguous."""

    base = graph.frozen_x_stops_dweight

    def takes(self, call: LayerNormCall) -> bool:
        return not call.x.is_contiguous()


_of_a_graph = mutant(directions=RECORDING, caught_by=CheckKind.GRAPH)
_of_graphs = mutant(directions=RECORDING, caught_by=CheckKind.INTERACTION)

output_buffer_reused_for_long_rows = mutant(caught_by=CheckKind.REPETITION)(
    _OutputBufferReusedForLongRows
)
gradient_buffer_reused_for_a_tail = _of_a_graph(_GradientBufferReusedForATail)
statistics_of_the_latest_forward_of_many_rows = _of_graphs(_StatisticsOfTheLatestForwardOfManyRows)
another_gradient_when_recorded_for_whole_warps = _of_graphs(
    _AnotherGradientWhenRecordedForWholeWarps
)
used_up_by_the_backward_of_several_axes = _of_a_graph(_UsedUpByTheBackwardOfSeveralAxes)
frozen_weight_stops_dx_of_a_batch = _of_a_graph(_FrozenWeightStopsDxOfABatch)
frozen_x_stops_dweight_of_strided_rows = _of_a_graph(_FrozenXStopsDweightOfStridedRows)
