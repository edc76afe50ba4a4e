"""Lines of the kernel log and of the fabric manager's log in any text: text in, Machine out.

    [ 1234.567890] NVRM: Xid (PCI:0000:44:00): 79, pid=1234, name=python, GPU has fallen off the bus.

The kernel log is from dmesg, journalctl -k or /var/log/kern.log. Each line is recognized by the text before
the message, or by the message, so kernel lines are found between lines of other captures. Errors of GPUs,
NVSwitches and PCIe become `KernelEvent`s. Formats: Linux, Documentation/PCI/pcieaer-howto.rst and
drivers/pci/pcie/aer.c; NVIDIA, "XID Errors" and "Fabric Manager User Guide" (SXid).
"""

import re
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from gputopo.captures.ledger import Format, is_noise
from gputopo.values.fields import kernel_address, rows_of
from gputopo.values.machine import KernelEvent, KernelEventKind, LineCounts, Machine, Unread
from gputopo.values.samples import seconds

SOURCE = "kernel log"

_LONGEST = 2000  # longer than any line of the kernel
_MAX_TEXT = 200
_MAX_LISTED = 1000  # lines that are not from a daemon
_MAX_EVENTS = 512  # events of different kinds, codes or devices
_MIN_LINES = 3  # a text with fewer lines and no event is not called a kernel log
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_MARK = r"[\s>|#%;]{0,40}(?:\[?[\w.-]{1,64}\]?:[ ])?(?:<\d{1,3}>)?"  # quotations, tools for many hosts
_SINCE_BOOT = r"\[ *(?P<boot>\d{1,9}\.\d{6})(?: <[ .\d]{1,20}>)?\]"
_LOCAL = r"\[\w{3} (?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d) (?P<year>\d{4})\]"
# The fabric manager of NVSwitches, in its own log.
_FABRIC = r"\[(?P<fabric>[A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d)\] (?=\[[A-Z]{3,8}\] \[tid \d)"
_HUMAN = r"\[(?: *\+\d{1,6}\.\d{6}|[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d)\]"  # dmesg -H: no seconds, or a delta
_ISO_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d"
_FRACTION = r"(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_SYSLOG = (
    rf"(?:(?:\w{{3}} )?(?P<iso>{_ISO_STAMP}){_FRACTION}(?: [A-Z]{{2,5}})?"
    r"|(?P<syslog>(?:[^\W\d_]{3,9}\.?|\d{1,2}\S) {1,2}\d{1,2} \d\d:\d\d:\d\d(?:\.\d{1,6})?))"
)
_RAW = r"\d{1,3},\d{1,12},\d{1,15},\S{1,20}?;"  # /dev/kmsg
_LEVEL = r"(?:[a-z]{1,8} *:[a-z]{1,8} *: )?"  # dmesg -x: `kern  :err   : `
_DMESG = (  # a time that other tools may also put before their lines
    rf"(?:{_SINCE_BOOT.replace('boot', 'boot2')}|{_LOCAL}|{_HUMAN}|{_FABRIC}"
    rf"|(?P<dmesg>{_ISO_STAMP},\d{{6}}[+-]\d\d:?\d\d)|{_RAW}) ?"
)
_OF_KERNEL = re.compile(
    rf"{_MARK}{_LEVEL}(?:(?:{_SYSLOG} \S{{1,64}} kernel: ?|\[ *(?P<mono>\d{{1,9}}\.\d{{6}})\] \S{{1,64}} "
    rf"kernel: ?)(?:{_SINCE_BOOT} ?)?|{_DMESG})(?:\[ *[TC]\d{{1,8}}\] ?)?"
)
_OF_SYSLOG = re.compile(rf"{_MARK}{_SYSLOG} \S{{1,64}} \S{{1,64}}: ")
_OF_JOURNAL = re.compile(r"-- \S.*(?:--|\.)$|-- Boot [0-9a-f]{8}|-- Reboot")  # in any language
_BOOT = re.compile(r"-- (?:Boot [0-9a-f]{8}|Reboot)|Linux version \d")
_LOAD = re.compile(
    r"nvidia-nvlink: Nvlink Core is being initialized|nvidia: (?:loading out-of-tree|module lic)"
)
_LOAD_S = 120.0  # longest time to the last line of a load. Not measured; chosen because drivers load in less.
# Commands that print the log of this boot or of an earlier one (`-b 1` is the oldest that is stored).
_COMMAND = re.compile(r"\b(?:dmesg|journalctl)\b")
EARLIER = re.compile(r"\bjournalctl\b.* (?:-\w*b|--boot)[ =]?-?[1-9](?![0-9a-f]{5})|\bdmesg\.\d")
_OF_MODULE = ("xid", "sxid", "lost", "nvlink", "nvrm")  # kinds of events that a load of the module ends
_WITHOUT_PREFIX = re.compile(
    rf"{_MARK}(?=nvidia-nv(?:switch|link)\S*: |nvidia [0-9a-f]{{4}}:|pcieport [0-9a-f]{{4}}:)"
)
_WORDS = (
    "kernel:",
    "NVRM:",
    "Xid",
    "PCIe Bus Error",
    "AER:",
    "nvidia-",
    "pciehp",
    "DPC:",
    "power state",
    "infoROM",
    "NVSwitch",
    "fabricmanager",
    "[tid ",
)
_STAMPED = re.compile(r"\[(?: *\+?\d{1,9}\.\d{6}|[A-Z][a-z]{2} )|[T ]\d\d:\d\d:\d\d,\d{6}")
# The parts that these names represent in the patterns of kernel_log.csv.
_PARTS = {
    "@BDF@": r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{1,2}:[0-9a-f]{1,2}(?:\.[0-7])?",
    "@SEVERITY@": r"(?P<severity>Correct(?:ed|able)|Uncorrect(?:ed|able)(?: \((?:Non-)?Fatal\))?)",
    "@AT@": r"(?:(?=.*?(?:GPU |PCI:)(?:at )?(?:PCI:)?"
    r"(?P<at>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)))?",
    "@ERROR@": r"(?=.*?(?:fail|error|unable|cannot|can't|could not|time(?:d )?out|mismatch|assert|\blost\b"
    r"|invalid|halted|locked|exception|not called|does not|refus|conflict|not found|no firmware|corrupt"
    r"|fallen off|already bound|installed in this system (?!has)|unlicensed|adapter found|probed"
    r"|will ignore|unexpected))",
}


_ROWS = rows_of(__file__, "kernel_log.csv")
# Messages: kind (None: not an error), driver, text (a template of the pattern's groups; empty:
# the group `text`), pattern. The first match is used.
_FORMS = [
    (
        msgspec.convert(row["kind"] or None, KernelEventKind | None),
        row["driver"] or None,
        row["says"],
        re.compile(re.sub("@[A-Z]+@", lambda name: _PARTS[name[0]], row["pattern"]), re.IGNORECASE),
    )
    for row in _ROWS
]
# A line with such an error is the kernel's, whatever is before the error.
_ANYWHERE = re.compile("|".join(row["mark"] for row in _ROWS if row["mark"]))
_NVRM = re.compile(r"(?P<driver>NVRM|nvidia-nv(?:link|switch)\S{0,8}): (?P<text>.*)")
_OF_GPU = re.compile(
    r"NVRM|infoROM is corrupted|S?Xid|Bus Error|AER|DPC|pciehp|power state|nvidia-(?:nv|peermem)|NVSwitch"
    r"|\[tid \d"
    r"|fabricmanager"
)
# A line with a time that may be the kernel's or of a tool that put it before the line of another output.
TIMED = re.compile(rf"^{_DMESG}(?P<line>(?!.*(?:{_OF_GPU.pattern})).*)", re.MULTILINE)
_INTERNAL = re.compile(r"_?[a-z]\w+: ")  # functions of the driver: one failure causes hundreds
# A line of the module that continues the line above it.
_CONTINUED = re.compile(
    r"(?!\w*[A-Z_])[a-z(]|None of the|GPU firmware|NVIDIA (?:graphics )?(?:GPU|device|driver|\d+\.\d)"
)
_FINISHED = re.compile(r"[.!]$")


class Taken(NamedTuple):
    """The kernel's lines of a text, and the text without these lines."""

    machine: Machine
    rest: str
    lines: int  # number of kernel lines
    read: int = 0  # number of lines about GPUs and PCIe

    @property
    def is_log(self) -> bool:
        """Whether there are enough kernel lines to call the text a kernel log."""
        return bool(self.machine.kernel_events) or self.lines >= _MIN_LINES

    @property
    def is_whole(self) -> bool:
        """Whether all other lines in the text are lines of daemons without a GPU."""
        others = (line for line in self.rest.split("\n") if line.strip())
        of_daemons = all(_OF_SYSLOG.match(line[:_LONGEST]) for line in others)
        return self.is_log and "GPU" not in self.rest and of_daemons


def detect(text: str) -> bool:
    """Return whether a kernel line has an error of a GPU or of PCIe, or there are several kernel lines."""
    return take(text).is_log


def parse(text: str, *, origin: str) -> Machine:
    """Read the kernel's lines; others are not understood."""
    return counted(take(text), alone=True)


def take(text: str) -> Taken:
    """Read the kernel's lines, and return the text without them; line numbers stay."""
    log = _Log()
    if not any(word in text for word in _WORDS) and _STAMPED.search(text) is None:
        return Taken(log.machine(), text, 0)
    rest: list[str] = []
    lines = 0
    for raw in text.split("\n"):
        message = _message(raw[:_LONGEST])
        if message is None:
            if _COMMAND.search(raw[:_LONGEST]):
                log.begin(earlier=EARLIER.search(raw[:_LONGEST]) is not None)
            rest.append(raw)
            continue
        rest.append("")
        lines += 1
        log.add(message)
    return Taken(log.machine(), "\n".join(rest) if lines else text, lines, log.read)


def counted(taken: Taken, *, alone: bool = False) -> Machine:
    """Return the machine of the log with its lines counted; messages about other devices are known.

    `alone`: the text is only this log, so other lines are not understood unless a daemon wrote them.
    """
    rest = [(number, line) for number, line in enumerate(taken.rest.split("\n"), 1) if alone and line.strip()]
    others = [
        Unread(source=SOURCE, line=number, text=_shown(line))
        for number, line in rest
        if _OF_SYSLOG.match(line[:_LONGEST]) is None and not is_noise(line)
    ]
    known = taken.lines - taken.read + len(rest) - len(others)
    counts = LineCounts(source=SOURCE, read=taken.read, known=known, not_understood=len(others))
    return replace(taken.machine, unread=tuple(others[:_MAX_LISTED]), lines=(counts,))


class _Message(NamedTuple):
    time: str | None
    text: str
    up_s: float | None = None  # seconds since boot, if the line also has a date


def _message(line: str) -> _Message | None:
    """Return the message of a kernel line, or None for any other line."""
    if prefix := _OF_KERNEL.match(line):
        message = line[prefix.end() :]
        up_s = float(prefix["boot"]) if prefix["boot"] and (prefix["iso"] or prefix["syslog"]) else None
        return _Message(_time(prefix), message.strip().rstrip("*`"), up_s)
    if prefix := _WITHOUT_PREFIX.match(line):
        return _Message(None, line[prefix.end() :].strip())
    if _OF_JOURNAL.match(line):
        return _Message(None, line.strip())
    if _ANYWHERE.search(line):
        return _Message(None, line[max(line.find("NVRM: "), 0) :].strip().rstrip("*`"))
    return None


def _time(prefix: re.Match[str]) -> str | None:
    """Return the time before a message: a date if there is one, else the seconds since boot."""
    if stamp := prefix["iso"] or prefix["dmesg"]:
        return stamp.replace(" ", "T", 1).partition(",")[0]
    if prefix["syslog"]:
        return " ".join(prefix["syslog"].split())
    parts = prefix["fabric"].split() if prefix["fabric"] else prefix.group("month", "day", "year", "clock")
    if parts[0] in _MONTHS:
        return f"{parts[2]}-{1 + _MONTHS.index(parts[0]):02d}-{int(parts[1]):02d}T{parts[3]}"
    boot = prefix["boot"] or prefix["boot2"] or prefix["mono"]
    return f"{boot} s" if boot else None


def _passed(before: str | None, time: str | None) -> float | None:
    """Return the seconds between two times of one log, or None if they are of different kinds or unknown."""
    first, second = _clock(before or ""), _clock(time or "")
    return second[1] - first[1] if first and second and first[0] == second[0] else None


def _clock(time: str) -> tuple[str, float] | None:
    month, *others = time.split(" ")
    if others == ["s"]:
        return "since boot", float(month)
    of_syslog = month in _MONTHS and len(others) == 2
    date = f"2000-{_MONTHS.index(month) + 1:02d}-{int(others[0]):02d}T{others[1]}" if of_syslog else time
    since = seconds(date)
    return None if since is None else ("of any year" if of_syslog else "of a year", since)


def _shown(text: str) -> str:
    return " ".join(text.split())[:_MAX_TEXT]


def _address(text: str | None) -> str | None:
    """Return the address of a function; function 0 if the text has only bus and device."""
    if text is None:
        return None
    return kernel_address(text if "." in text else f"{text}.0")


class _Log:
    """The events so far, by the facts that make two lines the same event."""

    def __init__(self) -> None:
        self.events: dict[tuple[object, ...], KernelEvent] = {}
        self.earlier: dict[tuple[object, ...], KernelEvent] = {}
        self.is_earlier = False  # the whole log is from an earlier boot
        self.last: tuple[str | None, float] | None = None  # date and time since boot, from a line with both
        self.received: list[tuple[_Message, re.Match[str]]] = []
        self.begun: _Message | None = None  # message of the module that the next line may continue
        self.read = 0  # number of lines

    def begin(self, *, earlier: bool) -> None:
        """Start with the log of this boot, or of an earlier boot."""
        self.end()
        self._receive()
        self.is_earlier, self.last = earlier, None

    def _restarted(self, *, module: bool = False, after_s: float = 0.0, at: str | None = None) -> None:
        """Mark events as earlier: before a boot, or over `after_s` seconds before a load of the `module`."""
        self.end()
        self._receive()
        for key, event in [*self.events.items()]:
            is_old = not after_s or (_passed(event.last_time, at) or 0.0) > after_s
            if not is_old or (module and event.kind not in _OF_MODULE):
                continue
            del self.events[key]
            known = self.earlier.get(key, replace(event, count=0, earlier=True))
            self.earlier[key] = replace(
                known, count=known.count + event.count, last_time=event.last_time or known.last_time
            )

    def add(self, message: _Message) -> None:
        """Read a line; a line of the module is joined with the lines that continue it."""
        before = self.last
        has_fallen = False  # the time since boot; the date has not
        if message.up_s is not None:
            self.last = message.time, message.up_s
            has_fallen = before is not None and message.up_s < before[1] - 1
        if _BOOT.match(message.text) or (
            has_fallen and before and (_passed(before[0], message.time) or 0.0) > 0
        ):
            self._restarted()
        elif _LOAD.match(message.text):
            self._restarted(module=True)
        elif message.text.startswith("NVRM: loading NVIDIA"):
            self._restarted(module=True, after_s=_LOAD_S, at=message.time)
        if _OF_GPU.search(message.text) is None:
            return
        self.read += 1
        if match := _NVRM.match(message.text):
            above = self.begun
            if above and _CONTINUED.match(match["text"].strip()) and not _FINISHED.search(above.text):
                self.begun = above._replace(text=f"{above.text} {match['text'].strip()}")
                return
            self.end()
            self.begun = message
        else:
            self._take(message)

    def end(self) -> None:
        """Read the message of the module that the next line could have continued."""
        if self.begun is not None:
            self._take(self.begun)
        self.begun = None

    def _take(self, message: _Message) -> None:
        fits = ((*form[:3], match) for form in _FORMS if (match := form[3].search(message.text)))
        kind, driver, says, match = next(fits, (None, None, "", None))
        if kind is None or match is None:
            return
        if "port" in match.groupdict():  # received by a port; the next lines may describe it
            self.received.append((message, match))
            return
        parts = {name: part for name, part in match.groupdict().items() if part}
        said = parts.get("severity") or parts.get("action")
        self._add(
            kind,
            message,
            says.format(**parts) or parts.get("text"),
            code=int(parts["code"]) if "code" in parts else None,
            severity=_severity(said) if said else None,
            at=parts.get("at"),
            driver=parts.get("driver", driver),
        )

    def _add(
        self,
        kind: KernelEventKind,
        message: _Message,
        text: str | None,
        *,
        code: int | None = None,
        severity: str | None = None,
        at: str | None = None,
        driver: str | None = None,
    ) -> None:
        """Add an event; messages without a code are the same event if they differ in numbers only."""
        apart = kind in ("nvrm", "nvlink")
        where = _address(at)
        words = re.sub(r"\b(?:0x)?[0-9a-f]*\d[0-9a-f]*\b", "", _shown(text or "")) if apart else None
        if kind == "nvrm" and _INTERNAL.match(text or ""):
            words = None
        key = (kind, code, severity, where, words)
        events = self.earlier if self.is_earlier else self.events
        known = events.get(key)
        if known is not None:
            events[key] = replace(known, count=known.count + 1, last_time=message.time or known.last_time)
        elif len(self.events) + len(self.earlier) < _MAX_EVENTS:
            events[key] = KernelEvent(
                kind=kind,
                text=_shown(text or ""),
                code=code,
                severity=severity,
                pci_address=where,
                device_driver=driver,
                time=message.time,
                last_time=message.time,
                earlier=self.is_earlier,
            )

    def machine(self) -> Machine:
        """Return the events as a machine."""
        self.end()
        self._receive()
        return Machine(source=SOURCE, kernel_events=(*self.earlier.values(), *self.events.values()))

    def _receive(self) -> None:
        """Add what ports received, except errors that a following line described."""
        events = self.earlier if self.is_earlier else self.events
        described = {(event.pci_address, event.severity) for event in events.values() if event.kind == "aer"}
        for message, match in self.received:
            severity = _severity(match["severity"])
            where, port = _address(match["at"]), _address(match["port"])
            if (where, severity) not in described and not (where is None and (port, severity) in described):
                self._add("aer", message, match["text"], severity=severity, at=match["at"] or match["port"])
        self.received.clear()


def _severity(text: str) -> str:
    """Return a severity in one word; an uncorrected AER error of unspecified kind is not called fatal."""
    lower = text.lower().replace("-", "")
    if lower.startswith("uncorrect"):
        return "fatal" if "(fatal" in lower else "nonfatal"
    return "corrected" if lower.startswith("correct") else lower


FORMAT = Format(
    "kernel log lines (dmesg, journalctl -k), the fabric manager's log",
    "Xid, SXid, AER, NVLink and driver errors with their times",
    detect,
    parse,
)
