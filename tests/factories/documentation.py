"""The README and the pages of docs/ as tests read them: their blocks of code, in order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (
    README,
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "implementations/cpu/README.md")),
    *(path for folder in ("docs", "experiments") for path in sorted((ROOT / folder).rglob("*.md"))),
)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"\n\n((?: {4}\S.*\n)+)")  # code, where it follows an empty line
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A block of code and where it stands."""

    page: Path
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The command lines of a block of shell, without comments and continuations."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [shlex.join(words) for line in lines if (words := shlex.split(line, comments=True))]


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """Yield the blocks of a page in the given languages; all of them without any."""
    for language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if not languages or language in languages:
            yield Block(page, language, text)


def shell_commands() -> list[tuple[str, str]]:
    """Return page and command line of every command shown as a block."""
    found = []
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        text = page.read_text(encoding="utf-8")
        shown = [*blocks(page, "sh")]
        shown += [Block(page, "sh", code) for code in _INDENTED.findall(_BLOCK.sub("", text))]
        found += [(name, command) for block in shown for command in block.commands]
        for block in blocks(page, "yaml"):
            folded = re.sub(r">-\n\s+|\n\s+(?=--)", " ", block.text)
            lines = re.findall(r"layernorm-bench (?:ab|run|export|check).*", folded)
            found += [(name, line) for line in lines]
    return found


def inline_code() -> list[tuple[str, str]]:
    """Return page and text of every piece of code within a sentence or a table."""
    return [
        (str(page.relative_to(ROOT)), code.replace("\n", " "))
        for page in PAGES
        for code in _INLINE.findall(_BLOCK.sub("", page.read_text(encoding="utf-8")))
    ]
