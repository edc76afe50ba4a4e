"""Copies of a machine's /sys and /proc: a folder, or a tar of one as hwloc-gather-topology makes it.

Here they are only found and unpacked; the probes read them as they read this machine.
"""

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gputopo.captures import intake
from gputopo.values.errors import InputError

if TYPE_CHECKING:
    import tarfile

READS = "a copied /sys (folder or tar)"
FACTS = "PCI tree, link speed and width, errors"

_NEEDED = ("sys", "proc", "dev", "run")
_HINT = "pack the folder that holds sys and proc, as hwloc-gather-topology does"
_DEEPEST = 2  # folders around sys: NAME/sys, or ./NAME/sys


def root_in(path: Path) -> Path | None:
    """Return the folder in or below `path` that holds `sys`, or None if `path` is no copied tree."""
    try:
        found = [folder for folder in _folders(path, _DEEPEST) if (folder / "sys").is_dir()]
    except (OSError, ValueError):
        return None
    return found[0] if len(found) == 1 or path in found[:1] else None


def is_archive(data: bytes) -> bool:
    """Return whether it is a tar, packed or not, by its first bytes."""
    return intake.is_packed(data) or data[257:262] == b"ustar"


@contextlib.contextmanager
def unpacked(data: bytes, *, origin: str) -> Iterator[Path]:
    """Unpack a tar into a temporary folder and return the folder in it that holds `sys`.

    Only folders, files and links that stay inside are made; links that begin with / count from the tree's
    own root. Raises InputError for names that lead outside, for too much, and for what is no such tar.
    """
    plain = intake.unpacked_bytes(data, origin=origin, max_bytes=intake.MAX_PLAIN_BYTES)
    with tempfile.TemporaryDirectory(prefix="gputopo-") as name:
        folder = Path(name).resolve()
        links = _make_files(plain, folder, origin)
        root = root_in(folder)
        if root is None:
            raise InputError(f"{origin} is a tar without a sys folder", _HINT)
        _make_links(links, folder, root)
        yield root


def _folders(path: Path, deepest: int) -> Iterator[Path]:
    if not path.is_dir():
        return
    yield path
    if deepest and not (path / "sys").is_dir():
        for child in sorted(path.iterdir()):
            if not child.is_symlink():
                yield from _folders(child, deepest - 1)


def _make_files(plain: bytes, folder: Path, origin: str) -> list[tuple[Path, str]]:
    """Write the folders and files; return the links, made last so that nothing is written through one."""
    import tarfile

    links: list[tuple[Path, str]] = []
    members = size = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            for member in archive:
                members += 1
                if members > intake.MAX_MEMBERS:
                    raise InputError(f"{origin} has more than {intake.MAX_MEMBERS:,} files", _HINT)
                size += member.size  # also of a hole: a sparse file is written in full
                if max(member.size - intake.MAX_MEMBER_BYTES, size - intake.MAX_TREE_BYTES) > 0:
                    raise InputError(f"{origin} has larger files than any /sys or /proc", _HINT)
                place = _place(member, folder, origin)
                if place is None:
                    continue
                if member.issym():
                    links.append((place, member.linkname))
                elif member.isdir():
                    place.mkdir(parents=True, exist_ok=True)
                elif member.isfile() and (content := archive.extractfile(member)) is not None:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(content.read())
                # Devices, pipes and hard links are in no /sys; they are passed over.
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        raise InputError(f"{origin} is no whole tar: {error}", "pack it again") from error
    return links


def _place(member: "tarfile.TarInfo", folder: Path, origin: str) -> Path | None:
    """Return where a member goes, or None where it is not needed. Raises InputError if it leads out."""
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if member.name.startswith("/") or ".." in parts or "\0" in member.name:
        raise InputError(f"{origin} has a file that leads outside: {member.name[:80]!r}", "do not trust it")
    needed = any(part in _NEEDED for part in parts[: _DEEPEST + 1]) or len(parts) <= _DEEPEST
    return folder.joinpath(*parts) if parts and needed else None


def _make_links(links: list[tuple[Path, str]], folder: Path, root: Path) -> None:
    """Make the links that stay inside. A link over another may lead out, so all are looked at in the end."""
    made: list[Path] = []
    for place, target in links:
        if target.startswith("/"):
            target = os.path.relpath(root / target.lstrip("/"), place.parent)
        try:
            if not _is_inside(place.parent, folder):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(target)
        except (OSError, ValueError):
            continue  # its place is taken, or the name is none
        made.append(place)
        if not _is_inside(place, folder):
            place.unlink()
    for place in made:
        if place.is_symlink() and not _is_inside(place, folder):
            place.unlink()


def _is_inside(place: Path, folder: Path) -> bool:
    return Path(os.path.realpath(place)).is_relative_to(folder)
