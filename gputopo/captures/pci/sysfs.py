"""Copies of a machine's /sys and /proc, as hwloc-gather-topology makes them, unpacked in a folder.

They are only found here; the probes read them like this machine's own /sys and /proc.
"""

from collections.abc import Iterator
from pathlib import Path

READS = "a folder with a copied /sys"
FACTS = "PCI tree, link speed and width, errors"

_DEEPEST = 2  # folders above sys: NAME/sys, or ./NAME/sys


def root_in(path: Path) -> Path | None:
    """Return the folder in or below `path` that has `sys`, or None if `path` is not a copied tree."""
    try:
        roots = [folder for folder in _folders(path, _DEEPEST) if (folder / "sys").is_dir()]
    except (OSError, ValueError):
        return None
    return roots[0] if len(roots) == 1 or path in roots[:1] else None


def _folders(path: Path, deepest: int) -> Iterator[Path]:
    if not path.is_dir():
        return
    yield path
    if deepest and not (path / "sys").is_dir():
        for child in sorted(path.iterdir()):
            if not child.is_symlink():
                yield from _folders(child, deepest - 1)
