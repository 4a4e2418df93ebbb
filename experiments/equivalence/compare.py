"""What differs between two records of record.py?

    python experiments/equivalence/compare.py OLD NEW [--most 20]

OLD and NEW are folders of record.py, or files written with its option --compact. "found" must be
the same in both: the exit code is 1 if a part or row is missing or was found differently. What a
row was found by may differ, and is listed. A new row is listed and fails nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click

Row = dict[str, Any]
LONGEST = 300  # characters of a text in a compact record; a longer one is replaced by its digest
WIDTH = 160  # characters of a value that is printed


@click.command()
@click.argument("old", type=Path)
@click.argument("new", type=Path)
@click.option("--most", default=20, show_default=True, help="differences printed per list")
def main(old: Path, new: Path, most: int) -> None:
    """Print the differences part by part."""
    before, after = read(old), read(new)
    is_same = True
    for part in before:
        if part not in after:
            click.echo(f"{part}: not in {new}")
            is_same = False
            continue
        must, may = differences(before[part], after[part])
        added = sorted(after[part].keys() - before[part].keys())
        fields = Counter(field for _, field, _ in may)
        click.echo(
            f"{part}: {len(before[part])} rows, {len(must)} missing or found differently, "
            f"{len(added)} new, {len({key for key, _, _ in may})} found by something else"
        )
        _show([f"{key}: {text}" for key, text in must], most)
        _show([f"new: {key}" for key in added], most)
        _show([f"by {field}: {count} rows" for field, count in fields.most_common()], most)
        _show([f"{key}: {field}: {text}" for key, field, text in may], most)
        is_same = is_same and not must
    raise SystemExit(0 if is_same else 1)


def read(record: Path) -> dict[str, dict[str, Row]]:
    """Return the rows of a record, a folder or a compact file, by part and key."""
    found: dict[str, dict[str, Row]] = {}
    for file in sorted(record.glob("*.jsonl")) if record.is_dir() else [record]:
        for line in file.read_text(encoding="utf-8").rstrip("\n").split("\n"):
            row = json.loads(line)
            found.setdefault(row["part"], {})[row["key"]] = row
    return found


def short(value: Any) -> Any:
    """Return a value in which each long text, or long value as JSON, is replaced by its digest."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    if len(text) <= LONGEST:
        return value
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def differences(
    old: dict[str, Row], new: dict[str, Row]
) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
    """Return the rows that are missing or found differently, and what others were found by."""
    must, may = [], []
    for key, row in old.items():
        if key not in new:
            must.append((key, "missing"))
            continue
        if row["found"] != new[key]["found"]:
            must.append((key, f"found {row['found']} -> {new[key]['found']}"))
        before, after = row["by"], new[key]["by"]
        for field in sorted(before.keys() | after.keys()):
            pair = before.get(field), after.get(field)
            if pair[0] != pair[1] and short(pair[0]) != short(pair[1]):
                may.append((key, field, _change(*pair)))
    return must, may


def _change(before: Any, after: Any) -> str:
    """Return what changed; of texts with several lines, the first line that differs."""
    if isinstance(before, str) and isinstance(after, str):
        pairs = zip_longest(before.splitlines(), after.splitlines(), fillvalue="")
        before, after = next((pair for pair in pairs if pair[0] != pair[1]), (before, after))
    texts = [value if isinstance(value, str) else json.dumps(value) for value in (before, after)]
    return " -> ".join(text[:WIDTH] for text in texts)


def _show(lines: list[str], most: int) -> None:
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    click.echo("".join(f"  {line}\n" for line in lines[:most] + more), nl=False)


if __name__ == "__main__":
    main()
