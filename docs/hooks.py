"""What MkDocs adds while it builds the site: pages and tables that are made, not written.

Published reports and the changelog become pages of the site. A line ``<!-- generated: NAME -->``
in a page is replaced by a table made from the code. Stale figures stop the build.
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from click.testing import CliRunner
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from harness.cli import main
from harness.store import record_schema

DOCS = Path(__file__).parent
ROOT = DOCS.parent

COPIED = {
    "published/peers.md": ROOT / "reports" / "published" / "peers.md",
    "published/bug-reports.md": ROOT / "reports" / "published" / "bug-reports.md",
    "published/peer-tests.md": ROOT / "reports" / "published" / "peer-tests.md",
    "published/cpu.html": ROOT / "reports" / "published" / "cpu.html",
    "published/history.html": ROOT / "reports" / "published" / "history.html",
    "published/findings.md": ROOT / "reports" / "published" / "findings.md",
    "published/real-modules.md": ROOT / "reports" / "published" / "real-modules.md",
    "experiments/index.md": ROOT / "experiments" / "README.md",
    **{
        f"experiments/{path.parent.name}.md": path
        for path in sorted((ROOT / "experiments").glob("*/README.md"))
    },
    "cpu_recentred.md": ROOT / "implementations" / "cpu" / "README.md",
    "changelog.md": ROOT / "CHANGELOG.md",
}
LISTED = ("presets", "workloads", "distributions", "layouts", "grad_outputs", "parameters")


def on_pre_build(config: MkDocsConfig) -> None:
    """Stop the build if a table of figures differs from its published results."""
    done = subprocess.run(
        [sys.executable, str(DOCS / "figures.py")], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PluginError(done.stderr)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from files elsewhere in the repository."""
    for name, path in COPIED.items():
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Replace each ``<!-- generated: NAME -->`` by its table, and links that leave docs/."""
    here = page.file.src_uri
    folder = COPIED.get(here, DOCS / here).parent
    pages = {path: name for name, path in COPIED.items()}

    def link_of_site(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        name = pages.get(target, posixpath.relpath(target, DOCS))
        is_outside = name.startswith("..")
        return link[0] if is_outside else f"]({posixpath.relpath(name, posixpath.dirname(here))}"

    markdown = re.sub(r"\]\((?!\w+:)([^)#\s]+)", link_of_site, markdown)
    for name, make in GENERATED.items():
        marker = f"<!-- generated: {name} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    return markdown


def on_page_content(html: str, **_: object) -> str:
    """Drop the names of Sphinx roles, which docstrings have and mkdocstrings shows as text."""
    return re.sub(r":(?:attr|class|data|func|meth|mod):(?=<)", "", html)


def command_pages() -> str:
    """Return the help of each command."""
    names = [[], *([name] for name in main.commands)]
    return "\n\n".join(
        f"## {' '.join(['layernorm-bench', *name])}\n\n```text\n{_printed(*name, '--help')}```"
        for name in names
    )


def schema_table() -> str:
    """Return the fields of a results file, from the schema that the store writes."""
    rows = ["| field | type | unit | meaning |", "|---|---|---|---|"]
    for path, kind, field in _fields(record_schema()):
        metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        meaning = metadata["description"].replace("|", "\\|").replace("\n", " ")
        rows.append(f"| `{path}` | {kind} | {metadata.get('unit', '')} | {meaning} |")
    return "\n".join(rows)


def _fields(
    fields: pa.Schema | pa.StructType, prefix: str = ""
) -> Iterator[tuple[str, str, pa.Field]]:
    """Return each field with its path and the name of its type, parents before children."""
    for field in fields:
        listed = pa.types.is_list(field.type)
        kind = field.type.value_type if listed else field.type
        path = f"{prefix}{field.name}{'[]' if listed else ''}"
        nested = pa.types.is_struct(kind)
        name = "group" if nested else str(kind)
        yield path, f"{'list of ' if listed else ''}{name}", field
        if nested:
            yield from _fields(kind, f"{path}.")


def catalogue_table(kind: str) -> str:
    """Return what ``layernorm-bench list KIND`` prints, as a table."""
    entries = json.loads(_printed("list", kind, "--json"))[kind]
    rows = [f"| `{name}` | {text} |" for name, text in entries.items()]
    return "\n".join(["| name | |", "|---|---|", *rows])


def _printed(*arguments: str) -> str:
    result = CliRunner().invoke(
        main, arguments, prog_name="layernorm-bench", catch_exceptions=False, terminal_width=80
    )
    return result.stdout


GENERATED = {
    "commands": command_pages,
    "schema": schema_table,
    **{f"list {kind}": lambda kind=kind: catalogue_table(kind) for kind in LISTED},
}
