"""The report: one self-contained page from results files alone.

It uses only the records, so that it can be made on any machine, without torch and without the
device that was measured. The page is imported when it is first used: documents that are printed in
a terminal need neither matplotlib nor pandas.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.report.page import build_page, write_report

__all__ = ["build_page", "write_report"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness.report import page

    return getattr(page, name)
