"""The terms of the page, with their definitions from docs/glossary.md.

glossary.json holds a copy of the definitions, because the package does not carry docs/. A test
compares the two; with WRITE_GOLDEN=1 it writes the file anew.
"""

from __future__ import annotations

import json
import re
from functools import cache
from html import escape
from importlib.resources import files

from markupsafe import Markup

from harness.report.content import name_of

__all__ = ["TERMS", "definitions", "with_terms"]

TERMS = {
    "ulp": "ulp",
    "condition number": "Condition number",
    "error bound": "Error bound",
    "out of guarantee": "Out of guarantee",
    "limit in theory": "Limit in theory",
    "first failure measured": "First failure measured",
    "timed in turn": "Timed in turn",
    "epoch": "Epoch",
    "interval": "Interval",
    "ceiling": "Ceiling",
    "disqualified": "Eligible",
    "eligible": "Eligible",
}
"""Words as they stand in captions, and the headings of the glossary that define them."""


@cache
def definitions() -> dict[str, str]:
    """Return the definitions of all headings of TERMS, in plain text."""
    text = files("harness.report").joinpath("glossary.json").read_text(encoding="utf-8")
    found: dict[str, str] = json.loads(text)
    return found


def with_terms(text: str) -> Markup:
    """Return ``text`` as HTML in which the first use of each term leads to its definition.

    The definition is shown when the pointer is over the term, or when the term has the focus.
    """
    words = "|".join(sorted(TERMS, key=len, reverse=True))
    seen: set[str] = set()

    def linked(found: re.Match[str]) -> str:
        heading = TERMS[found[0].lower()]
        if heading in seen:
            return found[0]
        seen.add(heading)
        definition = escape(definitions()[heading])
        return (
            f'<a class="term" href="#term-{name_of(heading)}" data-definition="{definition}">'
            f"{found[0]}</a>"
        )

    # the text has no entity that is a term
    return Markup(re.sub(rf"\b(?:{words})\b", linked, escape(text), flags=re.IGNORECASE))
