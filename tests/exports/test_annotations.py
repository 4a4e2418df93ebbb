"""GitHub's annotations: ten of a kind, the worst first, each on its line."""

from __future__ import annotations

from compared_runs import make_case
from exported import change_of, comparison_of, one_of_each

from harness.exports.annotations import annotations_of_comparison, annotations_of_refusal
from harness.regression.changes import ChangeKind


def test_failures_are_errors_doubts_warnings_and_notes_notices() -> None:
    found = annotations_of_comparison(one_of_each())
    assert [each.split(" ")[0] for each in found] == [
        "::error",
        "::error",
        "::warning",
        "::warning",
        "::warning",
        "::notice",
    ]
    assert found[0] == f"::error title=regressed%3A {make_case(rows=0).id}::because 0"
    assert found[-1] == "::notice title=layernorm-bench::it rains"


def test_where_nothing_is_to_be_said_nothing_is() -> None:
    fine = comparison_of(change_of(ChangeKind.UNCHANGED), change_of(ChangeKind.FASTER, number=1))
    assert annotations_of_comparison(fine) == []


def test_ten_are_shown_and_of_more_the_tenth_says_how_many() -> None:
    def found(count: int) -> list[str]:
        changes = [change_of(ChangeKind.SLOWER, f"why {number}", number) for number in range(count)]
        return annotations_of_comparison(comparison_of(*changes))

    assert len(found(10)) == 10
    assert found(10)[9].endswith("::why 9")
    assert len(found(14)) == 10
    assert found(14)[8].endswith("::why 8")
    assert found(14)[9].endswith("::and 5 more; see the job's summary and output")


def test_what_was_not_judged_is_one_warning_a_kind() -> None:
    changes = [
        change_of(ChangeKind.INCONCLUSIVE, f"noisy: {number}", number) for number in range(12)
    ]
    (line,) = annotations_of_comparison(comparison_of(*changes))
    name = make_case(rows=0).id
    assert line == f"::warning title=12 cases are inconclusive::such as {name}: noisy: 0"


def test_no_text_ends_its_command() -> None:
    case = make_case("mine.py:f,g\n")
    change = change_of(ChangeKind.REGRESSED, "100 %\r\n::error::fake, really: yes", case=case)
    (line,) = annotations_of_comparison(comparison_of(change))
    assert "\n" not in line
    assert "\r" not in line
    title, message = line.removeprefix("::error title=").split("::", 1)
    assert title.startswith("regressed%3A mine.py%3Af%2Cg%0A/forward")
    assert message == "100 %25%0D%0A::error::fake, really: yes"


def test_what_was_escaped_is_not_escaped_again() -> None:
    (line,) = annotations_of_refusal("50%0A and \udcff")
    assert line.endswith("::50%250A and \\udcff")
    assert line.startswith("::error title=layernorm-bench%3A nothing was compared::")


def test_a_title_is_no_longer_than_github_takes() -> None:
    (line,) = annotations_of_comparison(
        comparison_of(change_of(ChangeKind.REGRESSED, case=make_case("x" * 400)))
    )
    assert len(line.removeprefix("::error title=").split("::")[0]) == 255 + len("%3A") - 1
