"""The report: one self-contained page, and documents for a terminal, CI and other tools.

It uses only the records, so that it can be made on any machine, without torch and without the
device that was measured. Each name is imported from its module when it is first used: documents
that are printed in a terminal need neither matplotlib nor pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.records.lazy import names_in

if TYPE_CHECKING:
    from harness.report.assertion import assert_layer_norm
    from harness.report.changes import (
        MOST_ROWS,
        comparison_as_plain,
        document_of_comparison,
        document_of_history,
        end_of_comparison,
        history_as_plain,
    )
    from harness.report.choice import choices_document, evidence_lines
    from harness.report.choice_code import python_lines
    from harness.report.choice_json import choices_as_json
    from harness.report.ci import (
        LIMIT_BYTES,
        annotations_of_comparison,
        junit_of_comparison,
        junit_of_run,
        reports_of_gate,
        summary_of_comparison,
        summary_of_run,
    )
    from harness.report.document import (
        Cell,
        Document,
        Facts,
        Panel,
        Table,
        Text,
        definitions,
        json_text,
        markdown,
        number,
        pill,
        show,
        terminal_lines,
    )
    from harness.report.exports import AS_TEXT, csv_table
    from harness.report.figures import file_of
    from harness.report.page import build_page, drawings_of, tables_of, write_whole
    from harness.report.pytest_benchmark import extra_info_of, import_benchmarks, machine_info_of
    from harness.report.run import document_of_run, run_as_plain, statuses_text
    from harness.report.verdict import (
        document_of_explanation,
        document_of_self_test,
        document_of_verdict,
        headline,
        verdict_as_json,
    )

__all__ = [
    "AS_TEXT",
    "LIMIT_BYTES",
    "MOST_ROWS",
    "Cell",
    "Document",
    "Facts",
    "Panel",
    "Table",
    "Text",
    "annotations_of_comparison",
    "assert_layer_norm",
    "build_page",
    "choices_as_json",
    "choices_document",
    "comparison_as_plain",
    "csv_table",
    "definitions",
    "document_of_comparison",
    "document_of_explanation",
    "document_of_history",
    "document_of_run",
    "document_of_self_test",
    "document_of_verdict",
    "drawings_of",
    "end_of_comparison",
    "evidence_lines",
    "extra_info_of",
    "file_of",
    "headline",
    "history_as_plain",
    "import_benchmarks",
    "json_text",
    "junit_of_comparison",
    "junit_of_run",
    "machine_info_of",
    "markdown",
    "number",
    "pill",
    "python_lines",
    "reports_of_gate",
    "run_as_plain",
    "show",
    "statuses_text",
    "summary_of_comparison",
    "summary_of_run",
    "tables_of",
    "terminal_lines",
    "verdict_as_json",
    "write_whole",
]

__getattr__ = names_in(__name__, __file__)
