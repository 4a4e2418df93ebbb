"""The page: head, sections, template, style and script in one file that loads nothing."""

from __future__ import annotations

import os
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from markupsafe import Markup

from harness.records import Environment, Mode, Status
from harness.records.refusal import NotMeasuredError, refusing
from harness.records.text import count, first_of, grouped, in_words, listed
from harness.report.accuracy import error_against_condition, error_of_the_gradients
from harness.report.changes import gate_verdicts, how_it_changed
from harness.report.choice import first_choice, headline_of, machine_words
from harness.report.document import (
    Block,
    FigureBlock,
    Panel,
    Section,
    Table,
    Text,
    heading,
    html,
    rounded,
    templates,
)
from harness.report.frame import PageData, gather
from harness.report.provenance import (
    all_cases,
    environment_and_method,
    failures_and_warnings,
    terms,
)
from harness.report.speed import (
    latency_against_size,
    memory,
    speed_relative_to_native,
    which_implementation_to_run,
)
from harness.selection import NATIVE
from harness.store import Results

__all__ = ["SECTIONS", "build_page", "drawings_of", "tables_of", "write_whole"]

SECTIONS: tuple[Section, ...] = (
    which_implementation_to_run,
    gate_verdicts,
    how_it_changed,
    error_against_condition,
    latency_against_size,
    speed_relative_to_native,
    error_of_the_gradients,
    memory,
    failures_and_warnings,
    all_cases,
    environment_and_method,
    terms,
)
"""The sections, in order. To add one: a function, and its name here."""
_STYLES = ("page.css", "figures.css", "cases.css")
_SCRIPTS = ("page.js", "cases.js", "explorer.js", "table.js")
"""One script of the page: later files use what earlier ones define."""
_MOST_DRAWN = 8  # drawings of a section. Trade-off: each takes 20 kB and 60 ms
_MOST_BLAMED = 2  # trade-off: a card has room for two names


def build_page(results: Sequence[Results], *, title: str | None = None, **others: Any) -> str:
    """Return the page for ``results``: self-contained HTML.

    Equal results give the same page, byte for byte.

    Args:
        results: what results files hold; the samples are not needed.
        title: heading of the page; by default it names the machine.
        others: arguments of :func:`gather`: ``files``, the names of the results files, and
            ``max_condition``, ``history``, ``comparison``.

    Raises:
        NotMeasuredError: there is no record to report.
    """
    if not any(result.records for result in results):
        raise NotMeasuredError("no records to report; measure some with `layernorm-bench run`")
    data = gather(results, **others)
    # the page of a folder is about what changed
    sections = sorted(SECTIONS, key=lambda section: section is not how_it_changed)
    script = f'"use strict";\n(() => {{\n{_assets(_SCRIPTS)}\n}})();'
    return (
        templates()
        .get_template("page.html.j2")
        .render(
            title=title or _default_title(data),
            style=Markup(_assets(_STYLES)),
            script=Markup(script),
            script_hash=b64encode(sha256(script.encode()).digest()).decode(),
            data=data,
            environments=list(_environment_lines(data)),
            cards=list(_cards(data)),
            answers=list(_answers(data)),
            usage=_usage(data),
            sections=[
                {"id": section.__name__, "heading": heading(section), "html": html(blocks)}
                for section in sections
                if (blocks := list(_limited(section(data))))
            ],
        )
    )


def _assets(names: Sequence[str]) -> str:
    folder = files("harness.report").joinpath("templates")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _limited(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks without the figures beyond the limit, and say where to find those."""
    drawn = left = 0
    for block in blocks:
        if isinstance(block, FigureBlock):
            drawn += len(block.panels)
            if drawn > _MOST_DRAWN and drawn > len(block.panels):
                left += len(block.panels)
                continue
        yield block
    if left:
        yield Text(
            f"{count(left, 'more drawing')} would make the page large: “All cases” draws the same "
            "numbers, and `layernorm-bench export --format svg` writes each to a file."
        )


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in one step, or to a pipe or a device; its folder is made, a link is followed.

    Raises:
        Refusal: the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    partial = target.with_name(target.name + ".partial")
    content = content.encode() if isinstance(content, str) else content
    with refusing(path, "written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        try:
            partial.write_bytes(content)
            partial.replace(target)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


# --- parts of the page, as files for a README, a paper or a pull request --------------------------


def drawings_of(results: Sequence[Results]) -> dict[str, Panel]:
    """Return the figures by name; none is drawn before it is asked for."""
    return {
        panel.name: panel
        for block in _blocks(results)
        if isinstance(block, FigureBlock | Table)
        for panel in block.panels
    }


def tables_of(results: Sequence[Results]) -> dict[str, Table]:
    """Return the tables by name."""
    return {block.name: block for block in _blocks(results) if isinstance(block, Table)}


def _blocks(results: Sequence[Results]) -> Iterator[Block]:
    data = gather(results)
    return (block for section in SECTIONS for block in section(data))


# --- the head: what was measured where, the answer in words, and the numbers of cases ------------


def _default_title(data: PageData) -> str:
    """Return the heading of a page without a title of its own: of the machine, if it is one."""
    machines = {own.gpus[0].name if own.gpus else own.cpu for own in data.environments.values()}
    return f"LayerNorm on {machines.pop()}" if len(machines) == 1 else "LayerNorm"


def _environment_lines(data: PageData) -> Iterator[str]:
    """Yield for each environment its machine, software, commit and days."""
    for letter, own in data.environments.items():
        where = f"Environment {letter}: " if len(data.environments) > 1 else ""
        yield where + " · ".join(_environment_words(data, own))
    if data.history is not None:
        number = count(len(data.history.runs), "run")
        yield f"The latest of {number}; what changed is under “{heading(how_it_changed)}”."


def _environment_words(data: PageData, own: Environment) -> Iterator[str]:
    yield from machine_words(own)
    if own.git_commit:
        yield f"commit {own.git_commit[:10]}{' with uncommitted changes' if own.git_dirty else ''}"
    timed = [record.case for record in data.records if record.latency]
    if timed:
        threads = sorted({case.threads for case in timed})
        on = f"{' and '.join(map(str, threads))} thread{'' if threads == [1] else 's'}"
        yield f"timed in {listed(dict.fromkeys(case.dtype for case in timed))} on {on}"
    days = sorted(
        run.started_utc[:10] for run in data.runs if run.environment in {own.fingerprint, None}
    )
    if days:
        yield " to ".join(dict.fromkeys([days[0], days[-1]]))


def _answers(data: PageData) -> Iterator[dict[str, object]]:
    """Yield what the head says under each requirement, and its entry in the switch."""
    for answer in data.answers:
        level = answer.requirements.max_condition
        yield {
            "name": f"up to {rounded(level)}" if isfinite(level) else "any",
            "is_default": answer.is_default,
            "lines": headline_of(answer),
        }


def _usage(data: PageData) -> str:
    """Return how a model gets what the first sentence says to run; empty if it is native."""
    choice = first_choice(next(answer for answer in data.answers if answer.is_default))
    if choice is None or choice == NATIVE or choice[1] is not Mode.EAGER:
        return ""
    return f"import layernorm_bench\nlayernorm_bench.replace_layer_norms(model, {choice[0]!r})"


def _cards(data: PageData) -> Iterator[dict[str, str]]:
    """Yield the number of cases, and of those with each status, with a link to them.

    The note of a status names the implementations with the most such cases.
    """
    groups = grouped((record.status, record.case.implementation) for record in data.records)
    planned = f"of {count(data.planned, 'case')} planned"
    if data.repeated:
        planned += f"; {data.repeated:,} are in two runs"
    yield {"heading": "Recorded", "text": f"{len(data.records):,}", "note": planned, "status": ""}
    for status in Status:
        names = groups.get(status, [])
        if names or status.is_measured:
            heading = in_words(status).capitalize()
            blamed = [f"{name} {number:,}" for name, number in Counter(names).most_common()]
            note = first_of(blamed, _MOST_BLAMED) or "none"
            yield {"heading": heading, "text": f"{len(names):,}", "note": note, "status": status}
