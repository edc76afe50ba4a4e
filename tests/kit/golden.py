"""Texts that are kept as files, so that a change of one is seen whole."""

import os
from pathlib import Path


def assert_golden(path: Path, text: str) -> None:
    """Check that a text is that of a file; with WRITE_GOLDEN=1 in the environment it is written there."""
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
