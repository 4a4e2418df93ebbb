"""Presets and shards."""

from __future__ import annotations

from math import prod

import pytest
from factories.sweeping import NAMES, TWO_DEVICES, expanded
from hypothesis import given
from hypothesis import strategies as st

import implementations
from harness.cases import (
    DTYPES,
    expand,
    in_shard,
    load_preset,
    preset_names,
)
from harness.cases.inputs import NAMED
from harness.measure.devices import DEVICES
from harness.records import Case
from harness.records.refusal import Refusal

# --- presets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_names_only_what_exists(name: str) -> None:
    sweep = load_preset(name)
    planned = expand(
        sweep,
        implementations={
            implementation.name: implementation.devices for implementation in implementations.ALL
        },
        names=NAMED,
        devices=dict.fromkeys(DEVICES),
    )
    assert planned
    assert sweep.description
    named = {plan.case.implementation for plan in planned}
    assert named <= {implementation.name for implementation in implementations.ALL}
    assert len({plan.case.id for plan in planned}) == len(planned)


FOR_GPUS = {"models_gpu"}


@pytest.mark.parametrize("name", sorted({*preset_names()} - FOR_GPUS))
def test_a_preset_runs_on_a_machine_without_a_gpu(name: str) -> None:
    planned = expanded(load_preset(name))
    assert {plan.case.device for plan in planned} == {"cpu"}
    # a dozen float64 copies of the largest fit in 1 GiB
    assert max(prod(plan.case.shape) for plan in planned) <= 1 << 23


@pytest.mark.parametrize("name", FOR_GPUS)
def test_a_preset_for_gpus_says_so_where_there_is_none(name: str) -> None:
    with pytest.raises(Refusal, match="device 'cuda' cannot be used: torch sees no CUDA"):
        expanded(load_preset(name))
    planned = expanded(load_preset(name), TWO_DEVICES)
    assert {plan.case.device for plan in planned} == {"cuda"}
    # 64 MiB in bfloat16, beyond any L2; and with what a case holds within half of 80 GB
    sizes = {prod(plan.case.shape) for plan in planned}
    assert 1 << 25 <= min(sizes) <= max(sizes) <= 1 << 27


# --- shards --------------------------------------------------------------------------------------

cases = st.builds(
    Case,
    implementation=st.sampled_from(NAMES),
    shape=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 9),
)


@given(cases, st.integers(1, 20))
def test_every_case_is_in_exactly_one_shard(case: Case, count: int) -> None:
    assert sum(in_shard(case, index, count) for index in range(1, count + 1)) == 1


def test_the_shard_of_a_case_never_changes() -> None:
    # machines with different releases may share a sweep
    case = Case(implementation="native", shape=(64, 768))
    assert [in_shard(case, index, 4) for index in (1, 2, 3, 4)] == [True, False, False, False]
