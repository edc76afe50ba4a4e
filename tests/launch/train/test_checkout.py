from pathlib import Path

import pytest

from gputopo.launch.train.checkout import commit_of, own_commit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git(root: Path, files: dict[str, str], folder: str = ".git") -> Path:
    for name, text in files.items():
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "files",
    [
        {"HEAD": f"{COMMIT}\n"},
        {"HEAD": "ref: refs/heads/main\n", "refs/heads/main": f"{COMMIT}\n"},
        {"HEAD": "ref: refs/heads/main\n", "packed-refs": f"# pack-refs\n{COMMIT} refs/heads/main\n"},
        {"HEAD": "ref: a\n", "a": "ref: b\n", "b": COMMIT},
    ],
    ids=["detached", "loose", "packed", "chain"],
)
def test_the_commit_is_read_as_git_keeps_it(files: dict[str, str], tmp_path: Path) -> None:
    assert commit_of(git(tmp_path, files)) == COMMIT


def test_a_work_tree_beside_the_repository_is_understood(tmp_path: Path) -> None:
    git(tmp_path, {"refs/heads/side": COMMIT}, "main/.git")
    git(tmp_path, {"HEAD": "ref: refs/heads/side\n", "commondir": "../..\n"}, "main/.git/worktrees/side")
    (tmp_path / "side").mkdir()
    (tmp_path / "side/.git").write_text(f"gitdir: {tmp_path}/main/.git/worktrees/side\n")
    assert commit_of(tmp_path / "side") == COMMIT


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"HEAD": "ref: refs/heads/none\n"},
        {"HEAD": "ref: a\n", "a": "ref: a\n"},
        {"HEAD": "\n", "packed-refs": "nothing\n"},
    ],
    ids=["no-repository", "no-branch", "circle", "empty"],
)
def test_where_it_cannot_be_told_there_is_none(files: dict[str, str], tmp_path: Path) -> None:
    assert commit_of(git(tmp_path, files)) is None


def test_our_own_is_a_commit_or_not_known() -> None:
    own = own_commit()
    assert own is None or len(own) in (40, 64)
