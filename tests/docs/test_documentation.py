"""Every command, option, sweep, piece of Python and table of figures in the documentation."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import click
import pytest
from factories.commanding import call
from factories.fake_device import LocalFleet, use_fleets
from factories.git_repository import Repository
from factories.python_process import python

from harness.cases import Grid, Sweep, load_preset, load_sweep
from harness.cli import main
from harness.records import Refusal
from harness.run import plan
from harness.selection import find_workload

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


def inline_code() -> list[str]:
    """Return every piece of code within a sentence or a table."""
    return [
        code.replace("\n", " ")
        for page in PAGES
        for code in _INLINE.findall(_BLOCK.sub("", page.read_text(encoding="utf-8")))
    ]


SET_UP = (
    "python3 -m venv .venv && .venv/bin/pip install -q tox && .venv/bin/tox run -e sweep",
    "python3 -m venv .venv && .venv/bin/pip install -q tox && .venv/bin/tox",
)
OF_OTHERS = {"--adapter", "--write"}  # options of other programs, named within a sentence
WRITE = bool(os.environ.get("WRITE_GOLDEN"))
MOST = 110  # characters of a line of output that a page shows
CUT = " …"
MINE = next(blocks(README, "python")).text
DIFF = next(blocks(README, "diff")).text
OLD, NEW = (re.findall(rf"^\{sign}(.*)$", DIFF, re.MULTILINE)[0] for sign in "-+")
UNCORRECTED = "    variance = centred.var(-1, keepdim=True)"


@pytest.fixture(autouse=True)
def _mentioned(folder: Path) -> None:
    """Have what the pages mention in the current folder: mine.py and published results."""
    (folder / "results").mkdir()
    (folder / "results" / "published").symlink_to(ROOT / "results" / "published")
    (folder / "mine.py").write_text(MINE)


# --- each command that is shown could be typed ---------------------------------------------------


def contexts(words: list[str]) -> tuple[str, click.Context]:
    """Parse a command line, as far as nothing is run."""
    context = main.make_context("layernorm-bench", words[1:2], resilient_parsing=True)
    command = main.get_command(context, words[1])
    assert command is not None, words[1]
    return words[1], command.make_context(words[1], words[2:], parent=context)


@pytest.mark.parametrize(("page", "line"), shell_commands())
def test_a_command_is_as_the_program_has_it(page: str, line: str) -> None:
    words = shlex.split(line)
    match words:
        case ["layernorm-bench", "--version" | "--help"]:
            pass
        case ["layernorm-bench", *_]:
            check_planned(*contexts(words))
        case ["pytest", *_]:
            assert options_of(words) <= pytest_options()
        case ["pip" | ".venv/bin/pip", "install", *rest]:
            check_install(rest)
        case ["python3", "-m", "venv", ".venv"] | [".venv/bin/pre-commit", "install"]:
            pass
        case [".venv/bin/tox" | "tox", "run", "-e", environment]:
            assert f"[testenv:{environment}]" in (ROOT / "tox.ini").read_text()
        case ["python", script, *_]:
            assert (ROOT / script).exists()
        case _:
            assert line.replace("'&&'", "&&") in SET_UP


@pytest.mark.parametrize("line", ["run --upstream ones", "weigh", "run --preset fast"])
def test_a_command_that_cannot_be_typed_is_found(line: str) -> None:
    with pytest.raises((click.UsageError, Refusal, AssertionError)):
        check_planned(*contexts(["layernorm-bench", *line.split()]))


def check_planned(name: str, context: click.Context) -> None:
    """Check that all names exist, of a sweep that is on the command line."""
    given = context.params
    if name not in {"run", "ab"} or given["sweep_file"]:
        return
    axes = {axis: sum(given[axis], ()) for axis in Grid.model_fields if given.get(axis)}
    axes.pop("devices", None)  # a GPU may not be here
    sweep = load_preset(given["preset"]) if given["preset"] else Sweep()
    plan(sweep.with_axes(axes, dict(zip(axes, axes, strict=True))), LocalFleet())  # type: ignore[arg-type]


def check_install(rest: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert rest[0] == "-e"
    assert {*re.findall(r"\w+", rest[1])} <= {*project["optional-dependencies"]}
    if rest[2:]:
        assert rest[2] == "-c"
        assert (ROOT / rest[3]).exists()


def options_of(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if re.fullmatch(r"--[\w-]+(=.*)?", word)}


@cache
def pytest_options() -> set[str]:
    return {*re.findall(r"--[\w-]+", python("-m", "pytest", "--help").stdout)}


def click_options() -> set[str]:
    commands = [main, *(main.commands[name] for name in main.commands)]
    options = {
        option
        for command in commands
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    return options | {"--help", "--version"}


def test_each_option_in_a_sentence_exists() -> None:
    shown = {option for code in inline_code() for option in options_of(code.split())}
    plugin = {option for option in shown if option.startswith(("--layernorm-", "--benchmark-"))}
    assert shown - plugin - OF_OTHERS <= click_options()
    assert plugin <= pytest_options()


def test_each_command_in_a_sentence_exists() -> None:
    shown = {code.split()[1] for code in inline_code() if code.startswith("layernorm-bench ")}
    assert {word for word in shown if not word.startswith("-")} <= {*main.commands}


def test_each_file_in_a_sentence_exists() -> None:
    paths = re.compile(
        r"(harness|implementations|experiments|tests|docs|constraints|results/(published|baselines))/.*"
    )
    shown = {code for code in inline_code() if paths.fullmatch(code)}
    assert shown
    assert [path for path in sorted(shown) if not [*ROOT.glob(path)]] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


# --- Python and TOML that is shown ---------------------------------------------------------------

PYTHON = [block for page in PAGES for block in blocks(page, "python")]


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.page.stem)
def test_python_runs(block: Block) -> None:
    newest = Path("results/quick-20261122-031722.parquet")  # what a first sweep leaves
    newest.symlink_to(ROOT / "results" / "published" / "peers.parquet")
    names: dict[str, object] = {"__name__": "shown"}
    exec(compile(block.text, str(block.page), "exec", dont_inherit=True), names)
    for name, function in [*names.items()]:
        if name.startswith("test_") and callable(function):
            function()


TOML = [block for page in PAGES for block in blocks(page, "toml")]


@pytest.mark.parametrize("block", TOML, ids=lambda block: block.page.stem)
def test_toml_is_read(block: Block, folder: Path) -> None:
    path = folder / "mine.toml"
    path.write_text(block.text)
    if "[[grids]]" in block.text:
        load_sweep(path)
    elif "[[calls]]" in block.text:
        find_workload(str(path))
    else:
        (group,) = tomllib.loads(block.text)["project"]["entry-points"]
        assert group == "layernorm_bench.implementations"


# --- commands that are shown with their output ---------------------------------------------------


def shown_outputs() -> dict[str, list[tuple[Path, str]]]:
    """Return by command the pages and outputs wherever the block after a command is text."""
    found = defaultdict(list)
    for page in PAGES:
        for before, after in pairwise(blocks(page)):
            if (before.language, after.language) == ("sh", "text"):
                (command,) = before.commands
                found[command].append((page, after.text))
    return found


OUTPUTS = shown_outputs()
EXIT_CODES = {"verify": 1, "choose": 0, "ab": 1, "report": 0, "run": 0}


@pytest.mark.parametrize("command", OUTPUTS)
def test_output_is_what_the_command_prints(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words are those of today; of figures that depend on the machine only the place counts."""
    monkeypatch.setenv("COLUMNS", "110")
    name, *arguments = shlex.split(command)[1:]
    if name in {"run", "verify"}:  # without a process, which a busy machine may end as too slow
        use_fleets(monkeypatch, LocalFleet)
        arguments += ["--out", "results/shown.parquet"] if name == "run" else []
    if name == "ab":
        shutil.rmtree(folder / "results")
        repository = Repository.at(folder, {"mine.py": MINE.replace(UNCORRECTED, OLD)})
        repository.write({"mine.py": MINE.replace(UNCORRECTED, NEW)})
    result = call(name, *arguments, code=EXIT_CODES[name])
    printed = [line.rstrip() for line in result.stdout.splitlines()]
    exact = "results/published" in command  # the same on every machine
    for page, shown in OUTPUTS[command]:
        lines = [line for line in shown.splitlines() if line != "..."]
        if WRITE and not is_shown(shown, printed, exact=exact):
            write_output(page, shown, printed, len(lines))
        else:
            assert is_shown(shown, printed, exact=exact), "\n".join(printed[: len(lines)])


def is_shown(shown: str, printed: list[str], *, exact: bool) -> bool:
    """Whether each line that is shown, up to where it is cut, is printed in its place."""
    lines = [line for line in shown.splitlines() if line != "..."]
    return (
        len(lines) <= len(printed)
        and all(
            normal(whole, exact=exact).startswith(normal(line.removesuffix(CUT), exact=exact))
            and (line.endswith(CUT) or normal(whole, exact=exact) == normal(line, exact=exact))
            for line, whole in zip(lines, printed, strict=False)
        )
        and shown.endswith("...\n") == (len(printed) > len(lines))
    )


def normal(line: str, *, exact: bool) -> str:
    """Return a line with one space for several and, unless ``exact``, # for figures and commits."""
    line = re.sub(r"\s+", " ", line).rstrip()
    return line if exact else re.sub(r"\b[0-9a-f]{12}\b|\d[\d.,]*(e[+-]?\d*)?", "#", line)


def write_output(page: Path, shown: str, printed: list[str], lines: int) -> None:
    text = page.read_text(encoding="utf-8")
    new = [line if len(line) <= MOST else line[:MOST].rstrip() + CUT for line in printed[:lines]]
    new += ["..."] if len(printed) > lines else []
    page.write_text(text.replace(f"```text\n{shown}```", "```text\n" + "\n".join(new) + "\n```", 1))


# --- tables of figures ----------------------------------------------------------------------------

SCRIPT = ROOT / "docs" / "figures.py"


def test_no_table_of_figures_is_stale() -> None:
    assert python(SCRIPT, code=0).stderr == ""


def test_a_changed_figure_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    figures = import_module("figures")
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: copy -->\n\n<!-- end of figures -->\n")
    monkeypatch.setattr(figures, "PAGES", [page])
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    assert figures.stale_tables() == ["page.md: copy"]
    page.write_text(figures.renewed(page.read_text()))
    assert figures.stale_tables() == []
    page.write_text(page.read_text().replace("%", ".1%", 1))
    assert figures.stale_tables() == ["page.md: copy"]
