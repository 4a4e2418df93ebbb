"""The page: sections, template, style and script in one file that loads nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from harness.records.refusal import Refusal
from harness.regression.changes import Comparison
from harness.regression.history.runs import History
from harness.report.content import heading, name_of
from harness.report.frame import gather
from harness.report.glossary import with_terms
from harness.report.head import cards, default_title, headline, place_lines, usage
from harness.report.policy import POLICY_MARK, with_policy
from harness.report.sections import SECTIONS
from harness.report.sections.history import how_it_changed
from harness.selection.requirement import DEFAULT_MAX_CONDITION
from harness.store import Results

__all__ = ["ReportError", "build_page", "write_report"]


_STYLES = ("page.css", "figures.css", "cases.css")
_SCRIPTS = ("page.js", "cases.js", "explorer.js", "table.js")
"""One script of the page: later files use what earlier ones define."""


class ReportError(Refusal):
    """A page that cannot be made or written; the message says why, in one line."""


class NothingToReportError(ReportError):
    """There is no record to report."""

    exit_code = 3


def build_page(
    results: Sequence[Results],
    *,
    title: str | None = None,
    files: Sequence[str] = (),
    history: History | None = None,
    comparison: Comparison | None = None,
    max_condition: float = DEFAULT_MAX_CONDITION,
) -> str:
    """Return the page for ``results``: self-contained HTML.

    Equal results give the same page, byte for byte.

    Args:
        results: what results files hold; the samples are not needed.
        title: heading of the page; by default it names the machine.
        files: the results files, as the page names them.
        history: the folder that ``results`` are the latest of, if the page is to show it.
        comparison: with a baseline, if the page is to show it.
        max_condition: largest condition number that a choice has to serve.

    Raises:
        NothingToReportError: there is no record to report.
    """
    if not any(each.records for each in results):
        raise NothingToReportError("no records to report; measure some with `layernorm-bench run`")
    findings = replace(
        gather(results, files, max_condition), history=history, comparison=comparison
    )
    page = (
        _templates()
        .get_template("page.html.j2")
        .render(
            title=title or default_title(findings),
            findings=findings,
            places=list(place_lines(findings)),
            cards=cards(findings),
            answers=[headline(place, each) for place, each in enumerate(findings.answers)],
            usage=usage(findings),
            sections=[
                {"id": each.__name__, "heading": heading(each), "blocks": blocks}
                # the page of a folder is about what changed
                for each in sorted(SECTIONS, key=lambda each: each is not how_it_changed)
                if (blocks := each(findings))
            ],
            style=Markup("\n".join(map(_asset, _STYLES))),
            script=Markup("\n".join(map(_asset, _SCRIPTS))),
            policy=POLICY_MARK,
        )
    )
    return with_policy(page)


def write_report(
    results: Sequence[Results],
    path: Path,
    *,
    title: str | None = None,
    files: Sequence[str] = (),
    history: History | None = None,
    comparison: Comparison | None = None,
    max_condition: float = DEFAULT_MAX_CONDITION,
) -> None:
    """Write the page for ``results`` to ``path``, atomically if it is a regular file.

    A pipe or a device is written to, and a link is followed.

    Raises:
        NothingToReportError: there is no record to report, which the page says.
        ReportError: the file cannot be written.
    """
    if not any(each.records for each in results):
        _write(_empty_page(results, title), path)
        raise NothingToReportError(
            f"{path}: the page has no result, because there are no records to report; measure some "
            "with `layernorm-bench run`"
        )
    page = build_page(
        results,
        title=title,
        files=files,
        history=history,
        comparison=comparison,
        max_condition=max_condition,
    )
    _write(page, path)


def _empty_page(results: Sequence[Results], title: str | None) -> str:
    """Return a page that says that there is nothing to report, and which runs were read."""
    page = (
        _templates()
        .get_template("empty.html.j2")
        .render(
            title=title or "LayerNorm: no results",
            runs=[run for each in results for run in each.runs],
            style=Markup(_asset("page.css")),
            policy=POLICY_MARK,
        )
    )
    return with_policy(page)


def _write(page: str, path: Path) -> None:
    target = Path(os.path.realpath(path))
    partial = target.with_name(target.name + ".partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        is_special = target.exists() and not target.is_file()
        written = target if is_special else partial
        written.write_text(page, encoding="utf-8", newline="\n")
        if not is_special:
            partial.replace(target)
    except OSError as error:
        with suppress(OSError):  # the folder itself may be missing
            partial.unlink(missing_ok=True)
        raise ReportError(f"{path}: cannot be written: {error.strerror or error}") from error


@cache
def _templates() -> Templates:
    templates = Templates(
        loader=PackageLoader("harness.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"terms": with_terms, "slug": name_of, "breakable": _breakable}
    return templates


def _breakable(text: str) -> Markup:
    """Return text in which a long name may be broken after _, + and /."""
    return Markup(re.sub(r"[_+/]", r"\g<0><wbr>", str(escape(text))))


def _asset(name: str) -> str:
    return files("harness.report").joinpath("templates", name).read_text(encoding="utf-8")
