"""The tuning of the fused kernels, with a timer that is scripted and compilers that need no GPU."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

import pytest
from compiling import Candidate, Compiled, present
from factories.scripted_timer import (
    FAST,
    OWN,
    POISON,
    SLOW,
    TOO_LARGE,
    WRONG,
    Scripted,
    fails_at_once,
    scripted,
    silent,
)
from timing import Refused, Timed, timed
from tune_triton import (
    EndedError,
    Results,
    answers,
    compile_all,
    neighbours,
    table,
    time_all,
)

from implementations.triton.layout import Layout

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

KIND = Candidate("backward", "bfloat16", 1024, OWN)


def test_a_layout_is_timed_in_turn_with_the_one_in_use_until_the_gpu_is_lost() -> None:
    timer = Scripted()
    found = list(timed(timer, OWN, [OWN, SLOW, WRONG, TOO_LARGE, FAST, POISON, SLOW]))
    assert [getattr(one, "ratio", None) for one in found] == [1, 1.5, None, None, 0.8, None]
    assert timer.called[:4] == [OWN, OWN, OWN, OWN]
    assert {*timer.called[1::2]} == {OWN, SLOW, FAST}
    assert {*timer.called[::2]} == {OWN}
    # the drift is in both, and so in no ratio
    assert all(one.low == one.ratio == one.high for one in found if isinstance(one, Timed))
    assert found[2].is_wrong
    assert not found[3].is_wrong
    assert found[5] == Refused("RuntimeError: CUDA error: an illegal memory access")


# --- in processes --------------------------------------------------------------------------------


def test_a_candidate_that_ends_the_process_is_refused_and_the_others_are_timed(
    tmp_path: Path,
) -> None:
    results = Results(tmp_path / "found.jsonl", "this")
    tried = [replace(KIND, layout=one) for one in (OWN, TOO_LARGE, POISON, FAST)]
    assert time_all(results, tried, monotonic() + 600, scripted) == ""
    found = list(results.found.values())
    assert [type(one) for one in found] == [Timed, Refused, Refused, Timed]
    assert "exit code 9" in found[1].reason
    assert Results(results.path, "this").found == results.found
    best = results.best(KIND)
    assert best[0].layout == FAST
    assert "| 1, 2, 3, 6 | 62.5% | 0.800 (0.800 to 0.800) | 2 | 2 | 0 |" in table(results, [KIND])
    # nothing is timed: a table without a best layout
    again = Results(tmp_path / "none.jsonl", "this")
    assert "no memory" in time_all(again, tried, monotonic() + 600, fails_at_once)
    assert not again.found
    assert "| not timed |" in table(again, [KIND])


def test_a_process_that_says_nothing_is_ended() -> None:
    said = answers(5, silent)
    assert next(said) == 1
    with pytest.raises(EndedError, match="nothing for 5 s"):
        next(said)


def test_results_are_read_again_after_a_kill_and_only_those_of_this_machine(
    tmp_path: Path,
) -> None:
    path = tmp_path / "found.jsonl"
    made, refused = Compiled(80, 0, 1024, 8), Refused("too large")
    Results(path, "this").add(KIND, made)
    Results(path, "other").add(KIND, refused)
    path.write_text(path.read_text() + '{"machine": "this", "candid')
    again = Results(path, "this")
    assert again.found == {KIND: made}
    slow = replace(KIND, layout=SLOW)
    again.add(slow, refused)
    assert Results(path, "this").found == {KIND: made, slow: refused}


# --- candidates, compiled without a GPU ----------------------------------------------------------


@pytest.mark.parametrize(("hidden", "most"), [(256, 16), (1024, 8)])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_neighbours_of_a_layout_differ_in_one_choice(
    direction: str, hidden: int, most: int
) -> None:
    own = present(direction, "bfloat16", hidden)
    found = [one.layout for one in neighbours(Candidate(direction, "bfloat16", hidden, own))]
    assert own not in found
    assert replace(own, warps=own.warps * 2) in found
    assert max(layout.programs for layout in found) == most
    if direction == "backward":
        assert {replace(own, stages=own.stages + change) for change in (-1, 1)} <= {*found}


def test_candidates_are_compiled_in_processes_and_refused_for_their_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    fits = Candidate(
        "backward", "float32", 4096, Layout(columns=4096, warps=8, stages=2, programs=1)
    )
    large = replace(fits, layout=replace(fits.layout, rows=2, stages=5))
    broken = replace(fits, layout=replace(fits.layout, warps=3))
    results = Results(tmp_path / "found.jsonl", "sm_80")
    compile_all(results, [fits, large, broken], 80, 163 << 10, 2, monotonic() + 600)
    assert isinstance(results.found[fits], Compiled)
    assert "bytes of shared memory of 166912" in results.found[large].reason
    assert isinstance(results.found[broken], Refused)
