"""GitHub's annotations: ten per level, the worst first, one line each."""

from __future__ import annotations

from pathlib import Path

from factories.compared_runs import make_case
from factories.exported import change_of, comparison_of, one_of_each
from factories.golden import assert_golden

from harness.regression import ChangeKind
from harness.report.ci import annotations_of_comparison, annotations_of_refusal


def test_annotations_read_as_in_the_golden_file() -> None:
    lines = [*annotations_of_comparison(one_of_each()), *annotations_of_refusal("no such file")]
    assert_golden("\n".join(lines), Path(__file__).parent / "golden" / "annotations.txt")


def test_of_more_than_ten_the_tenth_is_their_number() -> None:
    def annotations(number: int) -> list[str]:
        changes = [change_of(ChangeKind.SLOWER, f"why {place}", place) for place in range(number)]
        return annotations_of_comparison(comparison_of(*changes))

    assert [line[-5:] for line in annotations(10)] == [f"why {place}" for place in range(10)]
    assert len(annotations(14)) == 10
    assert annotations(14)[8].endswith("::why 8")
    assert "5 more" in annotations(14)[9]


def test_text_cannot_end_its_command() -> None:
    case = make_case("mine.py:f,g\n")
    change = change_of(ChangeKind.REGRESSED, "100 %\r\n::error::fake, really: yes", case=case)
    (line,) = annotations_of_comparison(comparison_of(change))
    title, message = line.removeprefix("::error title=").split("::", 1)
    assert title.startswith("regressed%3A mine.py%3Af%2Cg%0A/forward")
    assert message == "100 %25%0D%0A::error::fake, really: yes"
    (line,) = annotations_of_refusal("50%0A and \udcff")
    assert line.endswith("::50%250A and \\udcff")


def test_a_title_is_cut_to_the_limit_of_github() -> None:
    (line,) = annotations_of_comparison(
        comparison_of(change_of(ChangeKind.REGRESSED, case=make_case("x" * 400)))
    )
    assert len(line.removeprefix("::error title=").split("::")[0]) == 255 + len("%3A") - 1
