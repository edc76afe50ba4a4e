"""Lines of the kernel log (dmesg, journalctl -k, /var/log/kern.log) in any text: text in, Machine out.

    [ 1234.567890] NVRM: Xid (PCI:0000:44:00): 79, pid=1234, name=python, GPU has fallen off the bus.

Each line is known by what stands before the message, or by the message itself, so the lines are found between
those of other captures. Errors of GPUs, NVSwitches and PCIe become `KernelEvent`s. Formats: Linux,
Documentation/PCI/pcieaer-howto.rst and drivers/pci/pcie/aer.c; NVIDIA, "XID Errors" and "Fabric Manager User
Guide" (SXid).
"""

import re
from typing import NamedTuple

import msgspec

from gputopo.captures.ledger import Format, is_noise
from gputopo.captures.pci import pci_tree
from gputopo.values.errors import InputError
from gputopo.values.machine import KernelEvent, KernelEventKind, LineCounts, Machine, Unread
from gputopo.values.samples import seconds

SOURCE = "kernel log"

_HINT = "use sudo dmesg -T > FILE, or sudo journalctl -k > FILE"
_LONGEST = 2000  # longer than any line of the kernel
_MAX_TEXT = 200
_MAX_LISTED = 1000  # lines of no daemon
_MAX_STAMPED = 500  # lines
_MAX_EVENTS = 512  # of different kinds, codes or devices
_MIN_LINES = 3  # of fewer without an event, the text is not called a kernel log
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_MARK = r"[\s>|#%;]{0,40}(?:\[?[\w.-]{1,64}\]?:[ ])?(?:<\d{1,3}>)?"  # by quotations, tools for many hosts
_SINCE_BOOT = r"\[ *(?P<boot>\d{1,9}\.\d{6})(?: <[ .\d]{1,20}>)?\]"
_LOCAL = r"\[\w{3} (?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d) (?P<year>\d{4})\]"
_HUMAN = r"\[(?: *\+\d{1,6}\.\d{6}|[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d)\]"  # dmesg -H: no seconds, or a delta
_ISO_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d"
_FRACTION = r"(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_SYSLOG = (
    rf"(?:(?:\w{{3}} )?(?P<iso>{_ISO_STAMP}){_FRACTION}(?: [A-Z]{{2,5}})?"
    r"|(?P<syslog>(?:[^\W\d_]{3,9}\.?|\d{1,2}\S) {1,2}\d{1,2} \d\d:\d\d:\d\d(?:\.\d{1,6})?))"
)
_LEVEL = r"(?:[a-z]{1,8} *:[a-z]{1,8} *: )?"  # dmesg -x: `kern  :err   : `
_OF_KERNEL = re.compile(
    rf"{_MARK}{_LEVEL}(?:(?:{_SYSLOG} \S{{1,64}} kernel: ?|\[ *(?P<mono>\d{{1,9}}\.\d{{6}})\] \S{{1,64}} "
    rf"kernel: ?)(?:{_SINCE_BOOT} ?)?|(?:{_SINCE_BOOT.replace('boot', 'boot2')}|{_LOCAL}|{_HUMAN}"
    rf"|(?P<dmesg>{_ISO_STAMP},\d{{6}}[+-]\d\d:?\d\d)) ?)(?:\[ *[TC]\d{{1,8}}\] ?)?"
)
_OF_SYSLOG = re.compile(rf"{_MARK}{_SYSLOG} \S{{1,64}} \S{{1,64}}: ")
_OF_JOURNAL = re.compile(r"-- \S.*(?:--|\.)$|-- Boot [0-9a-f]{8}|-- Reboot")  # in any language
_BOOT = re.compile(r"-- (?:Boot [0-9a-f]{8}|Reboot)|Linux version \d")
_LOAD = re.compile(
    r"nvidia-nvlink: Nvlink Core is being initialized|nvidia: (?:loading out-of-tree|module lic)"
)
_LOAD_S = 120.0  # at most from it to the last line of a load. Ours.
# Commands for the log of this boot, and those for one before it (`-b 1` is the oldest that is stored).
_COMMAND = re.compile(r"\b(?:dmesg|journalctl)\b")
EARLIER = re.compile(r"\bjournalctl\b.* (?:-\w*b|--boot)[ =]?-?[1-9](?![0-9a-f]{5})|\bdmesg\.\d")
_OF_MODULE = ("xid", "sxid", "lost", "nvlink", "nvrm")  # kinds of events that end as the module is loaded
_WITHOUT_PREFIX = re.compile(
    rf"{_MARK}(?=NVRM: |nvidia-nv(?:switch|link)\S*: |nvidia [0-9a-f]{{4}}:|pcieport [0-9a-f]{{4}}:)"
)
# An error that stands anywhere in a line is of the kernel, whatever is before it.
_WORDS = (
    *("kernel:", "NVRM:", "SXid", "PCIe Bus Error", "AER:", "nvidia-nv", "pciehp", "DPC:", "power state"),
    "infoROM",
)
_STAMPED = re.compile(r"\[(?: *\+?\d{1,9}\.\d{6}|[A-Z][a-z]{2} )|[T ]\d\d:\d\d:\d\d,\d{6}")
_ANYWHERE = re.compile(
    r"NVRM: Xid \(|\bSXid \(PCI:|NVRM: GPU .{1,60}fallen off the bus|PCIe Bus Error: severity="
    r"|infoROM is corrupted at gpu"
)

_BDF = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{1,2}:[0-9a-f]{1,2}(?:\.[0-7])?"
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<at>[0-9a-f:.]{1,20})\): (?P<code>\d{1,5})(?:, *(?P<text>.*))?", re.I
)
# Of NVLink 5 its severity, and of Xid 154 the new recovery action.
_XID_SEVERITY = re.compile(r"\b(Fatal|Non-?fatal)\b|changed from .* to 0x[0-9a-f]+ \(([\w ]{1,40})\)", re.I)
_SXID = re.compile(
    rf"SXid \(PCI:(?P<at>{_BDF})\): (?P<code>\d{{1,6}}), *(?P<text>(?:(?P<severity>Fatal|Non-fatal), *)?.*)",
    re.I,
)
_SXID_DETAIL = re.compile(r"(?:Severity \d|Data \{|Engine instance|LTSSM)", re.I)
_LOST = re.compile(
    rf"NVRM: GPU (?:at )?(?:PCI:)?(?P<at>{_BDF}):? .{{0,40}}(?P<text>GPU has fallen off the bus.*)"
    rf"|NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<at2>{_BDF}):? "
    r"(?:\(.{1,60}\) installed in this system )?(?P<text2>has fallen off the bus.*)",
    re.I,
)
_INFOROM = re.compile(rf"(?P<text>infoROM is corrupted) at gpu (?P<at>{_BDF})")  # also by nvidia-smi
_SEVERITY = r"(?P<severity>Correct(?:ed|able)|Uncorrect(?:ed|able)(?: \((?:Non-)?Fatal\))?)"
_AER = re.compile(
    rf"(?P<driver>[\w-]{{1,40}}) (?P<at>{_BDF}): (?:AER: )?(?P<text>PCIe Bus Error: severity={_SEVERITY}.*)",
    re.I,
)
_AER_RECEIVED = re.compile(
    rf"(?P<driver>[\w-]{{1,40}}) (?P<port>{_BDF}): (?:AER: )?(?P<text>(?:Multiple )?{_SEVERITY} error "
    rf"(?:message )?received(?: from|:) (?:(?P<at>{_BDF})|id=[0-9a-f]{{4}}).*)",
    re.I,
)
_PCIE = re.compile(
    rf"(?P<driver>nvidia|pcieport) (?P<at>{_BDF}): (?P<text>(?:DPC: containment event"
    r"|.*\bpciehp: Slot\(.{1,20}\): (?:Link Down|Card not present)|AER: device recovery failed"
    r"|(?:can't|Unable to) change power state.*inaccessible).*)",
    re.I,
)
_NVRM = re.compile(r"(?P<driver>NVRM|nvidia-nv(?:link|switch)\S{0,8}): (?P<text>.*)")
_MISMATCH = re.compile(
    r"API mismatch: (?:the )?(?P<client>client\b(?: \S+)?(?: \(pid \d{1,9}\))?)"
    r" has the version ([\d.]{3,20}\d),.{0,40} has the version ([\d.]{3,20}\d)"
)
_NVRM_AT = re.compile(
    r"(?:GPU |PCI:)(?:at )?(?:PCI:)?(?P<at>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)", re.I
)
_OF_GPU = re.compile(r"NVRM|infoROM is corrupted|SXid|Bus Error|AER|DPC|pciehp|power state|nvidia-nv")
_ERROR = re.compile(
    r"fail|error|unable|cannot|can't|could not|time(?:d )?out|mismatch|assert|\blost\b|invalid|halted"
    r"|exception|not called|does not|refus|conflict|not found|no firmware|corrupt|fallen off",
    re.I,
)
_NVLINK = re.compile(r"nvlink", re.I)
_INTERNAL = re.compile(r"_?[a-z]\w+: ")  # of a function of the driver: hundreds follow from one failure
# A line of the module that goes on with the one above it.
_CONTINUED = re.compile(
    r"(?!\w*[A-Z_])[a-z(]|None of the|GPU firmware|NVIDIA (?:graphics )?(?:GPU|device|driver)"
)
_FINISHED = re.compile(r"[.!]$")
# Lines of the module with such words that are no error.
_REMARK = re.compile(
    r"NVRM: +-?\d+ +\d+ |loading NVIDIA|Try unloading|drive a VGA console|GPU Board Serial|A GPU crash dump"
    r"|objClInitPcieChipset|Persistence mode"
)


class Taken(NamedTuple):
    """The kernel's lines of a text, and the text without them."""

    machine: Machine
    rest: str
    lines: int  # how many are of the kernel
    read: int = 0  # those about GPUs and PCIe
    stamped: str = ""  # the first messages of lines that only a time in brackets marks as the kernel's

    @property
    def is_log(self) -> bool:
        """Whether there are enough lines of the kernel to call the text its log."""
        return bool(self.machine.kernel_events) or self.lines >= _MIN_LINES

    @property
    def is_whole(self) -> bool:
        """Whether nothing stands beside the log but lines of daemons that name no GPU."""
        others = (line for line in self.rest.split("\n") if line.strip())
        of_daemons = all(_OF_SYSLOG.match(line[:_LONGEST]) for line in others)
        return self.is_log and "GPU" not in self.rest and of_daemons


def recognise(text: str) -> bool:
    """Return whether the text has an error of a GPU or of PCIe in a line of the kernel, or several lines."""
    return take(text).is_log


def parse(text: str, *, origin: str) -> Machine:
    """Read the kernel's lines; all others are not understood. Raises InputError if there is none."""
    taken = take(text)
    if not taken.lines:
        raise InputError(f"{origin} has no line of the kernel log in it", _HINT)
    return counted(taken, alone=True)


def take(text: str, *, stamps: bool = True) -> Taken:
    """Read the kernel's lines, and return the text without them; every line keeps its number.

    `stamps`: a time in brackets marks a line as one of the kernel; else such a line goes on without it, for
    some tool has put it before each line of another output.
    """
    log = _Log()
    if not any(word in text for word in _WORDS) and _STAMPED.search(text) is None:
        return Taken(log.machine(), text, 0)
    rest: list[str] = []
    stamped: list[str] = []
    lines = 0
    for raw in text.split("\n"):
        message = _message(raw[:_LONGEST])
        if message is None:
            if _COMMAND.search(raw[:_LONGEST]):
                log.begin(earlier=EARLIER.search(raw[:_LONGEST]) is not None)
            rest.append(raw)
            continue
        if message.stamped is not None and _OF_GPU.search(message.text) is None:
            if not stamps:
                rest.append(message.stamped)
                continue
            if len(stamped) < _MAX_STAMPED:
                stamped.append(message.stamped)
        rest.append("\r" if raw.endswith("\r") else "")
        lines += 1
        log.add(message)
    changed = lines or not stamps
    return Taken(log.machine(), "\n".join(rest) if changed else text, lines, log.read, "\n".join(stamped))


def counted(taken: Taken, *, alone: bool = False) -> Machine:
    """Return the machine of the log with its lines counted; messages of other devices are known.

    `alone`: nothing else is in the text, so lines of no daemon beside it are not understood.
    """
    rest = [(number, line) for number, line in enumerate(taken.rest.split("\n"), 1) if alone and line.strip()]
    others = [
        Unread(source=SOURCE, line=number, text=_shown(line))
        for number, line in rest
        if _OF_SYSLOG.match(line[:_LONGEST]) is None and not is_noise(line)
    ]
    known = taken.lines - taken.read + len(rest) - len(others)
    counts = LineCounts(source=SOURCE, read=taken.read, known=known, not_understood=len(others))
    return msgspec.structs.replace(taken.machine, unread=tuple(others[:_MAX_LISTED]), lines=(counts,))


class _Message(NamedTuple):
    time: str | None
    text: str
    stamped: str | None = None  # with its blanks, where a time in brackets alone stands before it
    up_s: float | None = None  # since boot, where a date stands before it, too


def _message(line: str) -> _Message | None:
    """Return the message of a line of the kernel; None for any other line."""
    if prefix := _OF_KERNEL.match(line):
        message = line[prefix.end() :]
        up_s = float(prefix["boot"]) if prefix["boot"] and (prefix["iso"] or prefix["syslog"]) else None
        return _Message(_time(prefix), message.strip(), None if "kernel:" in prefix[0] else message, up_s)
    if prefix := _WITHOUT_PREFIX.match(line):
        return _Message(None, line[prefix.end() :].strip())
    if _OF_JOURNAL.match(line):
        return _Message(None, line.strip())
    if _ANYWHERE.search(line):
        return _Message(None, line.strip())
    return None


def _time(prefix: re.Match[str]) -> str | None:
    """Return the time before a message: a date where there is one, else the seconds since boot."""
    if stamp := prefix["iso"] or prefix["dmesg"]:
        return stamp.replace(" ", "T", 1).partition(",")[0]
    if prefix["syslog"]:
        return " ".join(prefix["syslog"].split())
    if prefix["year"] and prefix["month"] in _MONTHS:
        month = 1 + _MONTHS.index(prefix["month"])
        return f"{prefix['year']}-{month:02d}-{int(prefix['day']):02d}T{prefix['clock']}"
    boot = prefix["boot"] or prefix["boot2"] or prefix["mono"]
    return f"{boot} s" if boot else None


def _passed(before: str | None, time: str | None) -> float | None:
    """Return the seconds between two times of one log; None where they are not of one kind, or unknown."""
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
    """Return the address of a function; that of function 0 where only bus and device are named."""
    if text is None:
        return None
    return pci_tree.address(text if "." in text else f"{text}.0")


class _Log:
    """The events so far, by what makes two lines the same event."""

    def __init__(self) -> None:
        self.events: dict[tuple[object, ...], KernelEvent] = {}
        self.earlier: dict[tuple[object, ...], KernelEvent] = {}
        self.is_earlier = False  # the log is of an earlier boot as a whole
        self.last: tuple[str | None, float] | None = None  # date and time since boot of a line with both
        self.received: list[tuple[_Message, re.Match[str]]] = []
        self.begun: _Message | None = None  # of the module, which may go on in its next line
        self.read = 0  # lines

    def begin(self, *, earlier: bool) -> None:
        """Begin with the log of this boot, or of an earlier one."""
        self.end()
        self._receive()
        self.is_earlier, self.last = earlier, None

    def _restarted(self, *, module: bool = False, after_s: float = 0.0, at: str | None = None) -> None:
        """Set aside what came before the machine booted, or the `module` was loaded, by `after_s` seconds."""
        self.end()
        self._receive()
        for key, event in [*self.events.items()]:
            is_old = not after_s or (_passed(event.last_time, at) or 0.0) > after_s
            if not is_old or (module and event.kind not in _OF_MODULE):
                continue
            del self.events[key]
            known = self.earlier.get(key, msgspec.structs.replace(event, count=0, earlier=True))
            self.earlier[key] = msgspec.structs.replace(
                known, count=known.count + event.count, last_time=event.last_time or known.last_time
            )

    def _has_booted(self, message: _Message) -> bool:
        """Return whether a line is the first of a boot: its time since boot fell, and its date did not."""
        before = self.last
        if message.up_s is not None:
            self.last = message.time, message.up_s
            if before and message.up_s < before[1] - 1 and (_passed(before[0], message.time) or 0.0) > 0:
                return True
        return _BOOT.match(message.text) is not None

    def add(self, message: _Message) -> None:
        """Take a line; one of the module that goes on is put together with those below it."""
        if self._has_booted(message):
            self._restarted()
        elif _LOAD.match(message.text):
            self._restarted(module=True)
        elif message.text.startswith("NVRM: loading NVIDIA"):
            self._restarted(module=True, after_s=_LOAD_S, at=message.time)
        if _OF_GPU.search(message.text) is None:
            return
        self.read += 1
        if found := _NVRM.match(message.text):
            above = self.begun
            if above and _CONTINUED.match(found["text"].strip()) and not _FINISHED.search(above.text):
                self.begun = above._replace(text=f"{above.text} {found['text'].strip()}")
                return
            self.end()
            self.begun = message
        else:
            self._take(message)

    def end(self) -> None:
        """Take the message of the module that may have gone on."""
        if self.begun is not None:
            self._take(self.begun)
        self.begun = None

    def _take(self, message: _Message) -> None:
        text = message.text
        if found := _XID.search(text):
            code, said = int(found["code"]), _XID_SEVERITY.search(found["text"] or "")
            severity = (said[1] or said[2]).lower().replace("-", "") if said and 144 <= code <= 154 else None
            self._add(
                "xid", message, found["text"], code=code, severity=severity, at=found["at"], driver="NVRM"
            )
        elif found := _SXID.search(text):  # lines with its severity as a number and its data follow
            severity = (found["severity"] or "").lower().replace("-", "") or None
            if severity or not _SXID_DETAIL.match(found["text"]):
                code = int(found["code"])
                self._add("sxid", message, found["text"], code=code, severity=severity, at=found["at"])
        elif found := _LOST.search(text):
            at = found["at"] or found["at2"]
            self._add("lost", message, found["text"] or found["text2"], at=at, driver="NVRM")
        elif found := _INFOROM.search(text):
            self._add("nvrm", message, found["text"], at=found["at"], driver="NVRM")
        elif found := _AER.search(text):
            severity = _severity(found["severity"])
            self._add(
                "aer", message, found["text"], severity=severity, at=found["at"], driver=found["driver"]
            )
        elif found := _AER_RECEIVED.search(text):
            self.received.append((message, found))
        elif found := _PCIE.search(text):
            self._add("pcie", message, found["text"], at=found["at"], driver=found["driver"])
        elif found := _MISMATCH.search(text):
            words = f"API mismatch: {found['client']} has version {found[2]}, kernel module {found[3]}"
            self._add("nvrm", message, words, driver="NVRM")
        elif (found := _NVRM.match(text)) and _ERROR.search(text) and not _REMARK.search(text):
            at = _NVRM_AT.search(text)
            kind: KernelEventKind = "nvlink" if _NVLINK.search(text) else "nvrm"
            self._add(kind, message, found["text"], at=at["at"] if at else None, driver="NVRM")

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
        """Add an event; of messages without a code each is one, whatever numbers are in it."""
        apart = kind in ("nvrm", "nvlink")
        where = _address(at)
        words = re.sub(r"\b(?:0x)?[0-9a-f]*\d[0-9a-f]*\b", "", _shown(text or "")) if apart else None
        if kind == "nvrm" and _INTERNAL.match(text or ""):
            words = None
        key = (kind, code, severity, where, words)
        events = self.earlier if self.is_earlier else self.events
        known = events.get(key)
        if known is not None:
            events[key] = msgspec.structs.replace(
                known, count=known.count + 1, last_time=message.time or known.last_time
            )
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
        """Add what ports received, unless an error that followed described it."""
        events = self.earlier if self.is_earlier else self.events
        described = {(event.pci_address, event.severity) for event in events.values() if event.kind == "aer"}
        for message, found in self.received:
            severity = _severity(found["severity"])
            where, port = _address(found["at"]), _address(found["port"])
            if (where, severity) not in described and not (where is None and (port, severity) in described):
                self._add("aer", message, found["text"], severity=severity, at=found["at"] or found["port"])
        self.received.clear()


def _severity(text: str) -> str:
    """Return AER's severity in one word; without a kind an uncorrected error is not called fatal."""
    lower = text.lower()
    return "corrected" if lower.startswith("correct") else "fatal" if "(fatal" in lower else "nonfatal"


FORMAT = Format(
    "kernel log lines (dmesg, journalctl -k)",
    "Xid, SXid, AER, NVLink and driver errors with their times",
    recognise,
    parse,
)
