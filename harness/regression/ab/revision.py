"""Another revision of a git repository: its files, in a folder of their own for a while.

The repository is read and never written to: the files come through an index of their own, so that
there is no worktree left behind however this ends, and no hook is run.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.records.refusal import Refusal

__all__ = [
    "BASE",
    "Checkout",
    "RevisionError",
    "checked_out",
    "is_unchanged",
    "place_of",
    "repository_of",
]

BASE = "base@"
"""What the target of a base begins with, where targets of both revisions may stand."""

_PACKAGE = "implementations"
# set by git for its hooks, for the repository that they are of
_OF_A_HOOK = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"}
_INSTALLED = {"site-packages", "dist-packages"}  # Python's name for the folder, and Debian's
_REGISTERS = re.compile(r"\b(?:custom_op|triton_op|define|Library)\(")
_SPACES = re.compile(r"""["'](\w+)::\w|\bLibrary\(\s*["'](\w+)["']""")
_OF_TORCH = {"", "aten", "prim", "prims"}


class RevisionError(Refusal):
    """A revision that cannot be had, or of which nothing can be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """The files of a revision, beside the repository that they are of."""

    repository: Path
    """Top folder of the repository, as it is worked on."""
    folder: Path
    """Top folder of the revision's files; each lies there where it lies in the repository."""
    commit: str
    """Which revision it is."""
    operators: frozenset[str]
    """Namespaces of the torch operators that its files register."""

    def path_of(self, path: Path) -> Path | None:
        """Where the revision has a file or folder of the repository; None for any other.

        What is installed is of no revision, also where the environment lies in the repository.
        """
        try:
            place = path.resolve().relative_to(self.repository)
        except ValueError:
            return None
        return None if _INSTALLED.intersection(place.parts) else self.folder / place


def place_of(target: str) -> Path | None:
    """Return the file or folder that a target is kept in; None where there is no such module.

    Nothing is imported. A plain name is taken for one of the package's own.
    """
    place, colon, _ = target.rpartition(":")
    if place.endswith(".py"):
        return Path(place).resolve()
    try:
        spec = find_spec(place.partition(".")[0] if colon else _PACKAGE)
    except ValueError:  # of a module without a spec, such as __main__
        return None
    if spec is None:
        return None
    found = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    return None if found is None else Path(found).resolve()


def repository_of(place: Path, target: str) -> Path:
    """Return the top folder of the repository in which a target's file is kept.

    Raises:
        RevisionError: there is none, or no git to ask.
    """
    folder = next(each for each in place.parents if each.is_dir())
    top = _git("-C", str(folder), "rev-parse", "--show-toplevel")
    # of a package that is installed inside a working copy, nothing has a revision either
    ignored = (
        top.returncode == 0
        and not _git("-C", str(folder), "check-ignore", "--quiet", str(place)).returncode
    )
    if top.returncode or ignored:
        why = "git ignores it there" if ignored else _said(top.stderr)
        raise RevisionError(
            f"{target}: {place} is in no git repository ({why}), so that there is no other "
            "revision of it; install from a checkout, with `pip install -e .`, or name a function "
            "of a repository of yours: -i path/to/file.py:function"
        )
    return Path(top.stdout.strip()).resolve()


@contextmanager
def checked_out(repository: Path, revision: str) -> Iterator[Checkout]:
    """Have the files of a revision in a folder of their own, removed in the end.

    Raises:
        RevisionError: the repository does not know the revision, or cannot give its files.
    """
    commit = _commit_of(repository, revision)
    with TemporaryDirectory(prefix="layernorm-bench-") as temporary:
        folder = Path(temporary).resolve() / "base"
        folder.mkdir()
        inside = {
            "GIT_DIR": _asked(repository, "rev-parse", "--absolute-git-dir"),
            "GIT_WORK_TREE": str(folder),
            "GIT_INDEX_FILE": str(folder.with_name("index")),
        }
        no_hooks = f"core.hooksPath={os.devnull}"
        _asked(folder, "-c", no_hooks, "read-tree", "--reset", "-u", commit, more=inside)
        yield Checkout(
            repository=repository,
            folder=folder,
            commit=commit,
            operators=_operators_in(folder),
        )


def is_unchanged(checkout: Checkout) -> bool:
    """Whether the repository holds what the revision does, and nothing that git does not know."""
    in_it = ("-C", str(checkout.repository))
    if _git(*in_it, "diff", "--quiet", checkout.commit, "--").returncode:
        return False
    unknown = ("ls-files", "--others", "--exclude-standard", "--exclude=__pycache__")
    return not _asked(checkout.repository, *unknown)


def _commit_of(repository: Path, revision: str) -> str:
    found = _git(
        "-C",
        str(repository),
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{revision}^{{commit}}",
    )
    if found.returncode:
        raise RevisionError(
            f"--base {revision}: {repository} has no such commit; name a branch, tag or commit, "
            "and fetch it first where the repository is a shallow clone, as those of CI are"
        )
    return found.stdout.strip()


def _operators_in(folder: Path) -> frozenset[str]:
    """Namespaces of operators that are written out in files which register some."""
    files = (path for path in folder.rglob("*.py") if path.is_file())  # not a link to nowhere
    texts = (path.read_text(errors="replace") for path in files)
    registering = (text for text in texts if _REGISTERS.search(text))
    found = {name for text in registering for pair in _SPACES.findall(text) for name in pair}
    return frozenset(found - _OF_TORCH)


def _asked(folder: Path, *arguments: str, more: Mapping[str, str] | None = None) -> str:
    """Return what git answers.

    Raises:
        RevisionError: it does not.
    """
    done = _git("-C", str(folder), *arguments, more=more)
    if done.returncode:
        raise RevisionError(f"git {' '.join(arguments)} failed: {_said(done.stderr)}")
    return done.stdout.strip()


def _git(
    *arguments: str, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    around = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    try:
        return subprocess.run(
            ("git", *arguments),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env={**around, **(more or {})},
        )
    except FileNotFoundError:
        raise RevisionError(
            "git is not installed, or not on the PATH: the base is a revision, and git has it"
        ) from None


def _said(text: str) -> str:
    """What git said, in one line: often the last of several is what to do."""
    return " ".join(text.split()) or "git does not say why"
