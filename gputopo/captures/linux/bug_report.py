"""`nvidia-bug-report.log`, what nvidia-bug-report.sh writes: outputs of many commands, each below its title.

    ____________________________________________

    /usr/bin/nvidia-smi --query

The parts that show the machine are read as captures of their own; all others (X logs, package lists, hex
dumps) are set aside and counted.
"""

import re
from typing import NamedTuple

READS = "`nvidia-bug-report.log` (packed or not)"
FACTS = "all of these, as far as they are in it"

SOURCE = "nvidia-bug-report"
_HEAD = re.compile(r"^Start of NVIDIA bug report log file|^nvidia-bug-report\.sh Version:", re.MULTILINE)
_RULE = re.compile(r"_{20,}\s*")
_FILE = re.compile(r"\*\*\* (?!ls: )(\S.*?)\s*")
_LISTING = re.compile(r"\*\*\* ls: .*")
# Commands and files whose parts show the machine; others that do are known by their content.
_READ = re.compile(
    r"nvidia-smi|lspci|lscpu|numactl|dmesg|journalctl|/proc/driver/nvidia/\S*(?:version|information)$"
    r"|/var/log/(?:messages|kern|syslog)|/run/log"
)
_CONTENT = re.compile(r"NVSMI LOG|^\| NVIDIA-SMI |<nvidia_smi_log|NVRM: Xid|SXid \(", re.MULTILINE)


class Part(NamedTuple):
    """One part. `line`: the number of lines above it; `lines`: how many lines with content it has."""

    title: str
    text: str
    line: int
    lines: int

    @property
    def is_read(self) -> bool:
        """Whether it may show the machine."""
        return _READ.search(self.title) is not None or _CONTENT.search(self.text) is not None


def recognise(text: str) -> bool:
    """Return whether the text is such a file."""
    return _HEAD.search(text) is not None


def parts(text: str) -> list[Part]:
    """Return the parts between the rules; several files under one rule are a part each."""
    found: list[Part] = []
    title, above, lines = "", 0, list[str]()

    def end() -> None:
        filled = sum(1 for line in lines if line.strip())
        if filled or title:
            found.append(Part(title, "\n".join(lines) + "\n", above, filled))

    for number, line in enumerate(text.splitlines()):
        file = _FILE.fullmatch(line)
        if _RULE.fullmatch(line) or file:
            end()
            title, above, lines = (file[1] if file else ""), number + 1, []
        elif _LISTING.fullmatch(line):
            lines.append("")
        elif not title and line.strip():
            title = line.strip()
            lines.append("")
        else:
            lines.append(line)
    end()
    return found
