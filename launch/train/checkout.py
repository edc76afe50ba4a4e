"""From which commit gputopo runs, if from a checkout of its repository. Reads files, runs nothing."""

import re
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")  # SHA-1, or SHA-256
_MOST_LINKS = 5  # a reference to a reference to ...


def own_commit() -> str | None:
    """Give the commit of the checkout that this package lies in, None where there is none."""
    root = Path(__file__).resolve().parents[2]
    return commit_of(root) if (root / "pyproject.toml").is_file() else None


def commit_of(root: Path) -> str | None:
    """Give the commit that is checked out in this folder, None if it cannot be told.

    What was changed since is not seen. A work tree beside the repository (`.git` is a file) is understood.
    """
    try:
        return _resolve(_git_folder(root), "HEAD")
    except (OSError, UnicodeDecodeError):
        return None


def _git_folder(root: Path) -> Path:
    found = root / ".git"
    if found.is_file():
        told = found.read_text().strip().removeprefix("gitdir:").strip()
        found = root / told
    return found


def _resolve(git: Path, name: str) -> str | None:
    common = git / "commondir"
    shared = git / common.read_text().strip() if common.is_file() else git
    for _ in range(_MOST_LINKS):
        place = next((folder / name for folder in (git, shared) if (folder / name).is_file()), None)
        text = _packed(shared, name) if place is None else place.read_text().strip()
        if text is None or _COMMIT.fullmatch(text):
            return text
        name = text.removeprefix("ref:").strip()
    return None


def _packed(git: Path, name: str) -> str | None:
    packed = git / "packed-refs"
    if not packed.is_file():
        return None
    for line in packed.read_text().splitlines():
        commit, _, held = line.partition(" ")
        if held == name and _COMMIT.fullmatch(commit):
            return commit
    return None
