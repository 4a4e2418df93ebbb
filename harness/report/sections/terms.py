"""The terms of the page, as footnotes."""

from __future__ import annotations

from harness.report.content import Block, Facts
from harness.report.frame import Findings
from harness.report.glossary import definitions

__all__ = ["terms"]


def terms(_: Findings) -> tuple[Block, ...]:
    """Define the terms that captions use."""
    return (Facts("From the glossary", tuple(definitions().items()), is_glossary=True),)
