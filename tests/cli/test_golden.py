"""What commands print, line by line: one file for each screen. `WRITE_GOLDEN=1 pytest` writes the files anew.

The first line of a file is the command, with the kit's machine in brackets if it runs on one.
"""

import os
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import ByName, Call

FILES = sorted(Path(__file__).with_name("golden").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_command_prints_what_it_printed(
    file: Path, call: Call, on_scenario: ByName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    first, _, printed = file.read_text(encoding="utf-8").partition("\n")
    machine, command = first.split("$ gputopo ")
    if machine:
        on_scenario(machine.strip(" []"))
    done = call(*shlex.split(command))
    assert done.err == ""
    if "WRITE_GOLDEN" in os.environ:
        file.write_text(f"{first}\n{done.out}", encoding="utf-8")
        return
    assert done.out.splitlines() == printed.splitlines()
