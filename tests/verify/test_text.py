"""The words of verdicts are those in tests/data/verdicts.txt, and contradict none of their values.

After a change of words, write the file anew and read the difference:

    WRITE_VERDICTS=1 pytest tests/verify/test_text.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from verdict_examples import EXAMPLES

from harness.verify.findings import Outcome
from harness.verify.result import Verdict
from harness.verify.text import headline, verdict_lines

GOLDEN = Path(__file__).parent.parent / "data" / "verdicts.txt"

every_example = pytest.mark.parametrize("verdict", EXAMPLES.values(), ids=EXAMPLES)


def test_the_words_are_those_of_the_file() -> None:
    said = "\n\n".join(
        "\n".join([f"# {name}", *verdict_lines(verdict)]) for name, verdict in EXAMPLES.items()
    )
    if os.environ.get("WRITE_VERDICTS"):
        GOLDEN.write_text(said + "\n")
    assert said + "\n" == GOLDEN.read_text()


@every_example
def test_the_headline_says_the_outcome(verdict: Verdict) -> None:
    begins = {
        Outcome.LAYER_NORM: "a LayerNorm",
        Outcome.WRONG: "NOT a LayerNorm",
        Outcome.NOT_VERIFIED: "NOT verified",
    }
    assert headline(verdict).startswith(begins[verdict.outcome])


@every_example
def test_no_verdict_is_wrong_beside_no_failure(verdict: Verdict) -> None:
    assert not re.search(r"\b0 (of \d+ )?cases", headline(verdict))


def test_there_is_an_example_of_every_outcome() -> None:
    assert {each.outcome for each in EXAMPLES.values()} == {*Outcome}
