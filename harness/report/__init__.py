"""The report: one self-contained page from results files alone.

It uses only the records, so that it can be made on any machine, without torch and without the
device that was measured.
"""

from harness.report.page import ReportError, build_page, write_report

__all__ = ["ReportError", "build_page", "write_report"]
