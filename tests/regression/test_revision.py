"""The files of another revision are checked out, and the repository stays as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from factories.git_repository import Repository

import implementations
from harness.records import Refusal
from harness.regression import checked_out, file_of, is_unchanged, repository_of

OPERATORS = """
@torch.library.custom_op("mine::one", mutates_args=())
two = torch.library.triton_op(
    "yours::two", one, mutates_args=()
)
library = torch.library.Library("theirs", "DEF")
torch.library.define("fourth::four", "(Tensor x) -> Tensor")
torch.ops.not_ours.five()
"""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.at(tmp_path / "repository", {"ln.py": "old", "deep/er/x.py": "also old"})


def test_the_files_of_a_revision_have_the_same_relative_paths(repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.git("branch", "branch/of-mine")
    repository.write({"ln.py": "new", "only_now.py": ""})
    repository.commit()
    with checked_out(repository.path, "branch/of-mine") as found:
        assert found.commit == first
        assert found.path_of(repository.path / "ln.py") == found.folder / "ln.py"
        assert (found.folder / "ln.py").read_text() == "old"
        assert (found.folder / "deep/er/x.py").read_text() == "also old"
        assert not (found.folder / "only_now.py").exists()


def test_a_checkout_inside_a_hook_runs_no_hook_and_leaves_nothing_behind(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = repository.path / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {repository.path}/hook-ran\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    before = sorted(repository.path.rglob("*"))
    with checked_out(repository.path, "HEAD") as found:
        assert (found.folder / "ln.py").exists()
    assert not found.folder.parent.exists()
    assert sorted(repository.path.rglob("*")) == before


@pytest.mark.parametrize("revision", ["gone", "HEAD^{tree}", "--help"])
def test_a_revision_that_is_not_a_commit_is_refused(repository: Repository, revision: str) -> None:
    with pytest.raises(Refusal, match="has no such commit"):
        checked_out(repository.path, revision).__enter__()


def test_a_file_that_git_does_not_keep_has_no_revision(
    repository: Repository, tmp_path: Path
) -> None:
    repository.write({".gitignore": "venv/\n", "venv/ln.py": ""})
    with pytest.raises(Refusal, match=r"ln.py is in no git repository \(.*not a git repo"):
        repository_of(tmp_path / "ln.py", "ln.py:f")
    with pytest.raises(Refusal, match="git ignores it"):
        repository_of(repository.path / "venv/ln.py", "ln.py:f")


def test_a_file_is_found_without_importing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "falls_here.py").write_text("raise RuntimeError")
    (tmp_path / "space_here").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    here, package = tmp_path.resolve(), Path(implementations.__file__ or "")
    found = {
        "falls_here:f": here / "falls_here.py",
        "space_here.deeper:f": here / "space_here",
        "no_such_module_here:f": None,
        "native": package.resolve(),
    }
    assert {target: file_of(target) for target in found} == found


def test_a_working_copy_is_unchanged_without_changes_and_new_files(repository: Repository) -> None:
    with checked_out(repository.path, "HEAD") as found:
        assert is_unchanged(found)
        repository.write({"new.py": ""})
        assert not is_unchanged(found)
        os.remove(repository.path / "new.py")
        repository.write({"ln.py": "new"})
        assert not is_unchanged(found)
        repository.commit()
        assert not is_unchanged(found)


def test_operators_registered_by_a_literal_name_are_found(repository: Repository) -> None:
    repository.write({"ops.py": OPERATORS})
    repository.commit()
    with checked_out(repository.path, "HEAD") as found:
        assert found.operators == {"mine", "yours", "theirs", "fourth"}
