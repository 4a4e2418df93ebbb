"""The files of another revision of a git repository, checked out into a temporary folder.

The repository is never written to: the checkout uses its own index and runs no hook, so however
this ends, no worktree is left behind.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.measure import environment_outside_hooks
from harness.records.refusal import Refusal

_PACKAGE = "implementations"
_INSTALLED = {"site-packages", "dist-packages"}  # Python's name for the folder, and Debian's
_REGISTERS = re.compile(r"\b(?:custom_op|triton_op|define|Library)\(")
_SPACES = re.compile(r"""["'](\w+)::\w|\bLibrary\(\s*["'](\w+)["']""")
_OF_TORCH = {"", "aten", "prim", "prims"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """The files of a revision, and their repository."""

    repository: Path
    """Top folder of the working copy."""
    folder: Path
    """Top folder of the revision's files, at the same relative paths as in the repository."""
    commit: str
    operators: frozenset[str]
    """Namespaces of the torch operators that its files register."""

    def path_of(self, path: Path) -> Path | None:
        """Return where the revision has a file or folder of the repository; None for any other.

        Installed packages are of no revision, even if their environment is in the repository.
        """
        try:
            relative = path.resolve().relative_to(self.repository)
        except ValueError:
            return None
        return None if _INSTALLED.intersection(relative.parts) else self.folder / relative


def file_of(target: str) -> Path | None:
    """Return the file or folder of a target; None if there is no such module.

    Nothing is imported. A plain name is taken to be one of this package's implementations.
    """
    module, colon, _ = target.rpartition(":")
    if module.endswith(".py"):
        return Path(module).resolve()
    try:
        spec = find_spec(module.partition(".")[0] if colon else _PACKAGE)
    except ValueError:  # of a module without a spec, such as __main__
        return None
    if spec is None:
        return None
    origin = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    return None if origin is None else Path(origin).resolve()


def repository_of(file: Path, target: str) -> Path:
    """Return the top folder of the repository of a target's file.

    Raises:
        Refusal: it is in no repository, or git is not installed.
    """
    folder = next(parent for parent in file.parents if parent.is_dir())
    top = _git(folder, "rev-parse", "--show-toplevel")
    why = _message(top.stderr) if top.returncode else ""
    # a package installed inside a working copy, such as in .venv, has no revision either
    if not why and not _git(folder, "check-ignore", "--quiet", str(file)).returncode:
        why = "git ignores it there"
    if why:
        raise Refusal(
            f"{target}: {file} is in no git repository ({why}), so it has no other revision; "
            "install from a checkout with `pip install -e .`, or name a function in a repository "
            "of your own: -i path/to/file.py:function"
        )
    return Path(top.stdout.strip()).resolve()


@contextmanager
def checked_out(repository: Path, revision: str) -> Iterator[Checkout]:
    """Check out the files of a revision into a temporary folder.

    Raises:
        Refusal: the repository has no such commit, or git fails.
    """
    name = f"{revision}^{{commit}}"
    found = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
    if found.returncode:
        raise Refusal(
            f"--base {revision}: {repository} has no such commit; name a branch, tag or commit, "
            "and fetch it first if the repository is a shallow clone, as CI services make them"
        )
    commit = found.stdout.strip()
    with TemporaryDirectory(prefix="layernorm-bench-") as temporary:
        folder = Path(temporary).resolve() / "base"
        folder.mkdir()
        inside = {
            "GIT_DIR": _output_of(repository, "rev-parse", "--absolute-git-dir"),
            "GIT_WORK_TREE": str(folder),
            "GIT_INDEX_FILE": str(folder.with_name("index")),
        }
        no_hooks = f"core.hooksPath={os.devnull}"
        _output_of(folder, "-c", no_hooks, "read-tree", "--reset", "-u", commit, **inside)
        operators = _operators_in(folder)
        yield Checkout(repository=repository, folder=folder, commit=commit, operators=operators)


def is_unchanged(checkout: Checkout) -> bool:
    """Whether the working copy equals the revision and has no untracked files."""
    if _git(checkout.repository, "diff", "--quiet", checkout.commit, "--").returncode:
        return False
    untracked = ("ls-files", "--others", "--exclude-standard", "--exclude=__pycache__")
    return not _output_of(checkout.repository, *untracked)


def _operators_in(folder: Path) -> frozenset[str]:
    """Return the namespaces of torch operators that the files register by a literal name."""
    files = (path for path in folder.rglob("*.py") if path.is_file())  # not a broken link
    texts = (path.read_text(errors="replace") for path in files)
    registering = (text for text in texts if _REGISTERS.search(text))
    found = {name for text in registering for pair in _SPACES.findall(text) for name in pair}
    return frozenset(found - _OF_TORCH)


def _output_of(folder: Path, *arguments: str, **variables: str) -> str:
    """Return the output of git, with further variables of the environment.

    Raises:
        Refusal: git fails.
    """
    done = _git(folder, *arguments, **variables)
    if done.returncode:
        raise Refusal(f"git {' '.join(arguments)} failed: {_message(done.stderr)}")
    return done.stdout.strip()


def _git(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ("git", "-C", str(folder), *arguments)
    env = {**environment_outside_hooks(), **variables}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=env
        )
    except FileNotFoundError:
        raise Refusal(
            "git is not installed, or not on the PATH; it is needed to check out the base"
        ) from None


def _message(text: str) -> str:
    """Return git's message in one line; the last part of it often says what to do."""
    return " ".join(text.split()) or "git gives no reason"
