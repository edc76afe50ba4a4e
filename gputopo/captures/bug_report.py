"""nvidia-bug-report.log: outputs of many commands on one machine, each below a rule and its title.

Parts that show the machine are read as separate captures. All others (X logs, build logs, package lists, hex
dumps) are skipped by their titles. Files of /proc/driver/nvidia are parts of one list, and so are lists of
lspci; the parts of a list are joined before they are read.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gputopo.captures import kernel_log, ledger, limits
from gputopo.values.errors import InputError
from gputopo.values.machine import LineCounts, Machine, Unread
from gputopo.values.samples import PASSING, facts_of, gpu_with, of_sample

SOURCE = "nvidia-bug-report"
READS = "`nvidia-bug-report.log` (packed or not)"
FACTS = "all of these, if included"

_HINT = "run nvidia-bug-report.sh as root and give its whole log, or use nvidia-smi -q > FILE"
_BUG_REPORT = re.compile(
    r"^Start of NVIDIA bug report log file|^nvidia-bug-report\.sh Version:", re.MULTILINE
)
_BOUNDARY = re.compile(
    r"^(?:_{20,}[ \t]*|\*\*\* (?!ls: )(?P<file>\S.*?)[ \t]*|(?P<command>/\S*/nvidia-smi(?: .*)?))\r?$",
    re.MULTILINE,
)
_LISTING = re.compile(r"^\*\*\* ls: .*$", re.MULTILINE)
_MODULE = re.compile(r"/proc/driver/nvidia/\S*(?:version|information)$")
_LSPCI = re.compile(r"\blspci\b(?!.* -\w*t)")
_LOG = re.compile(r"dmesg|journalctl|/var/log/(?:messages|kern|syslog)|/run/log|Scanning kernel log files")
# X logs, build logs and other parts without facts about the machine: most of a report.
_SKIPPED = re.compile(
    r"_COMM=|Xorg|xorg|gdm|make\.log|dkms|install|xrandr|xset|glxinfo|vulkan|nvidia-settings|debugdump|base64"
    r"|acpidump|dmidecode|lsusb|modinfo|profiles|\bldd\b|systemctl|nvidia-smi .*(?:--unit|-u\b)",
    re.IGNORECASE,
)
_READ = re.compile(rf"nvidia-smi|lspci|lscpu|numactl|{_LOG.pattern}|{_MODULE.pattern}")
_CONTENT = re.compile(r"NVSMI LOG|^\| NVIDIA-SMI |<nvidia_smi_log|NVRM: |SXid \(", re.MULTILINE)

_PASSING = PASSING - {"lost"}

Captures = Callable[[str, str], list[Machine]]  # (text, origin) -> captures in the text


class BugReportPart(NamedTuple):
    """One part. `line`: the number of lines above its text."""

    title: str
    text: str
    line: int

    @property
    def is_read(self) -> bool:
        """Whether it may show the machine."""
        if _SKIPPED.search(self.title) or not self.text.strip():
            return False
        return _READ.search(self.title) is not None or _CONTENT.search(self.text) is not None


def detect(text: str) -> bool:
    """Return whether the text is such a report."""
    return _BUG_REPORT.search(text) is not None


def parts(text: str) -> list[BugReportPart]:
    """Return the parts between the rules; several files under one rule are separate parts."""
    blocks: list[BugReportPart] = []
    bounds = [*_BOUNDARY.finditer(text)]
    line, at = 0, 0
    for rule, following in zip(bounds, [*bounds[1:], None], strict=True):
        line += text.count("\n", at, rule.end()) + 1
        at = rule.end() + 1
        block = text[at : following.start() if following else len(text)]
        title = rule["file"] or rule["command"] or ""
        if title:
            block = _LISTING.sub("", block)
        elif head := re.match(r"\s*(\S.*)", block):
            title = head[1].strip()
            block = "\n" * block.count("\n", 0, head.end()) + block[head.end() :]
        blocks.append(BugReportPart(title, block, line))
        line -= 1 if rule.end() >= len(text) else 0
    return blocks


def parse(text: str, origin: str, captures: Captures) -> list[Machine]:
    """Read the parts that show the machine. Raises InputError if no part does."""
    machines: list[Machine] = []
    refused: list[Unread] = []
    not_understood = 0
    for part in _joined(part for part in parts(text) if part.is_read):
        try:
            machines_of_part = captures(part.text, origin)
        except limits.TooMuchError:
            raise
        except InputError as error:
            if _LOG.search(part.title) is None:  # most logs have no line about GPUs
                words = f"{part.title}: {error.what.removeprefix(origin).lstrip(' :')}"
                not_understood += len(ledger.filled(part.text))
                refused.append(Unread(source=SOURCE, line=part.line + 1, text=words[:200]))
            continue
        is_earlier = kernel_log.EARLIER.search(part.title) is not None
        for machine in machines_of_part:
            if _LOG.search(part.title) is None:
                unread = (replace(line, line=line.line + part.line) for line in machine.unread)
                machines.append(replace(machine, unread=tuple(unread)))
                continue
            # Lines of a log that are not the kernel's are known.
            lines = (
                replace(of, known=of.known + of.not_understood, not_understood=0) for of in machine.lines
            )
            events = (replace(event, earlier=is_earlier or event.earlier) for event in machine.kernel_events)
            machines.append(replace(machine, unread=(), lines=tuple(lines), kernel_events=tuple(events)))
    if not machines:
        raise InputError(f"{origin} is a bug report without a part that shows the GPUs", _HINT)
    accounted = sum(of.read + of.known + of.not_understood for machine in machines for of in machine.lines)
    filled = sum(1 for line in text.split("\n") if line and not line.isspace())
    known = max(filled - accounted - not_understood, 0)
    counts = LineCounts(source=SOURCE, read=0, known=known, not_understood=not_understood)
    return [*_passing_from_one(machines), Machine(source=SOURCE, unread=tuple(refused), lines=(counts,))]


def _joined(parts: "Iterator[BugReportPart]") -> list[BugReportPart]:
    """Return the parts, with the parts of each list joined; each line keeps its position."""
    whole: dict[str, BugReportPart] = {}
    others: list[BugReportPart] = []
    for part in parts:
        kind = next((pattern.pattern for pattern in (_MODULE, _LSPCI) if pattern.search(part.title)), None)
        if kind is None:
            others.append(part)
            continue
        above = whole.setdefault(kind, BugReportPart(part.title, "", part.line))
        gap = part.line - above.line - above.text.count("\n")
        whole[kind] = above._replace(text=above.text + "\n" * gap + part.text)
    return [*whole.values(), *others]


def _passing_from_one(machines: Sequence[Machine]) -> list[Machine]:
    """Return the machines with momentary values (load, clocks, link now) only in the one with most of them.

    The commands of a report run within seconds: differences between them are not two states of the machine.
    """
    passing = [sum(len(of_sample(facts_of(gpu))) for gpu in machine.gpus) for machine in machines]
    most = passing.index(max(passing))
    return [
        machine
        if at == most
        else replace(
            machine,
            gpus=tuple(
                gpu_with(gpu.index, {path: v for path, v in facts_of(gpu).items() if path not in _PASSING})
                for gpu in machine.gpus
            ),
            samples=(),
        )
        for at, machine in enumerate(machines)
    ]
