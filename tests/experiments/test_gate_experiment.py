"""The gate experiment in short: what is exact, in two cases, through the commands themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

GATES = Path(__file__).parents[2] / "experiments" / "gates"
SWEEP = """
[[grids]]
implementations = ["subjects.py:native", "subjects.py:two_pass"]
shapes = ["8x64"]
measure = ["errors", "memory"]
"""


@pytest.fixture(scope="module")
def gates() -> Iterator[Any]:
    sys.path.insert(0, str(GATES))
    try:
        import live_gates

        yield live_gates
    finally:
        sys.path.remove(str(GATES))


@pytest.fixture(scope="module")
def repository(gates: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    sweep = tmp_path_factory.mktemp("sweep") / "two.toml"
    sweep.write_text(SWEEP)
    return gates.Repository(tmp_path_factory.mktemp("repository"), sweep)


def kinds(answer: dict[str, Any]) -> dict[str, str]:
    return {change["case"]["implementation"]: change["kind"] for change in answer["changes"]}


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        ("nothing", "unchanged"),
        ("bfloat16 statistics", "regressed"),
        ("variance over N-1", "regressed"),
        ("extra copy", "regressed"),
    ],
)
def test_ab_fails_for_planted_changes_only(repository: Any, planted: str, kind: str) -> None:
    repository.plant(planted)
    answer = repository.run("ab")
    assert kinds(answer) == {"subjects.py:native": "unchanged", "subjects.py:two_pass": kind}
    assert answer["failed"] is (kind == "regressed")
