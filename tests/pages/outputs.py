"""What a document shows below a command line, against what that command prints."""

import re
import shlex
from pathlib import Path

from tests.kit import commands


def check_output(document: str, command: str, home: Path) -> None:
    """Run a command of a document; assert that its block shows nothing else (... for omitted lines)."""
    _, _, after = document.partition(f"```\n$ {command}\n")
    shown = [part for part in after.partition("```\n")[0].split("...\n") if part]
    words = shlex.split(re.sub("^gputopo", "python -m gputopo", command))[1:]
    done = commands.run(*words, COLUMNS="80", GPUTOPO_HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert shown, f"the document does not show {command}"
    rest = done.stdout
    for part in shown:
        _, found, rest = rest.partition(part)
        assert found, part
