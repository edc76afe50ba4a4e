"""Reads small files of /proc and /sys."""

import os
from pathlib import Path


def read_text(path: str | Path) -> str | None:
    """Return the text of a small file (64 KiB at most) without the blanks around it, or None if unreadable.

    One read call, as sysfs wants it: a tree has hundreds of such files, and this is the fast method.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(file, 65536).decode(errors="replace").strip()
    except OSError:
        return None
    finally:
        os.close(file)
