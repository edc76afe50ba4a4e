"""The values that `nvidia-smi` prints, read by kind: a number with its unit, a switch, an address.

Where there is no value, the reason is the source's text. A value that cannot be read as its kind is
never guessed at: it is strange, and listed.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple


class ReportedValue(NamedTuple):
    """The content of one place: a value, or why there is none; `strange`: unknown content."""

    value: Any
    reason: str | None = None
    strange: bool = False
    twice: bool = False  # the source has two different values


LOST = "gpu is lost"
NEEDS_RESET = "gpu requires reset"

_LONGEST = 2000  # the longest value of any driver, a command line, is far shorter
_REASONS = re.compile(
    r"n/?a|none|(?:unknown|unk)?\s?err(?:or)?!*|not (?:supported|found|active|available.*)|gpu is lost"
    r"|gpu requires reset|(?:reset|reboot) required|(?:requested functionality|functionality) .*deprecated"
    r"|function not found|insufficient permissions|no permission|uninitialized|in use|unknown|no data"
    r"|invalid argument|deprecated.*|redacted|masked|hidden",
    re.IGNORECASE | re.DOTALL,
)
_NUMBER = re.compile(r"(-?\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z%()]*)", re.ASCII)
_DEPRECATED = re.compile(r"\s+\[deprecated[^\]]*\]$", re.IGNORECASE)  # "610.57 [Deprecated; use ...]"
_WHOLE = re.compile(r"(?: (?:MHz|MiB|MB|W|C|%|us)|\d%|N/A\]?|None|(?:En|Dis)abled|Active|Yes|No|Default)\s*$")
_ADDRESS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE | re.ASCII)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z-]{1,80}", re.ASCII)
_MASKED = re.compile(r"GPU-[0Xx*-]+")
_VERSION = re.compile(r"\d{1,4}(?:\.\d{1,5}){1,3}", re.ASCII)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME_OF_LOG = re.compile(
    r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) (\d|[012]\d|3[01]) ((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d) (\d{4})", re.ASCII
)
_TIME_OF_QUERY = re.compile(
    r"(\d{4})/(0\d|1[0-2])/([0-2]\d|3[01]) ((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{3})?)", re.ASCII
)
# Drivers up to 331 call MiB "MB".
_UNITS = {"MiB": ("MiB", "MB"), "%": ("%",), "C": ("C",), "W": ("W",), "MHz": ("MHz",), "us": ("us",)}
_SWITCHES = {"enabled": True, "disabled": False, "yes": True, "no": False, "on": True, "off": False}
_PROCESSES = {"C": "compute", "G": "graphics", "C+G": "compute+graphics", "M": "mps", "M+C": "mps"}


def clean(text: str) -> str:
    """Return a value on one line, without the note that a name is deprecated."""
    text = " ".join(text[:_LONGEST].split())
    return _DEPRECATED.sub("", text) if text.endswith("]") else text


def gpu_count(text: str | None) -> int | None:
    """Return a number of GPUs; None for anything else, also digits of other scripts and absurd lengths."""
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text, re.ASCII) else None


def is_whole(text: str) -> bool:
    """Return whether the very end of a text is surely not cut: it is a unit or a word that is known."""
    return _WHOLE.search(text) is not None


def read(kind: str, text: str, *, bare: bool = False) -> ReportedValue:
    """Read a value as a kind of the tables. `bare`: a number may stand without its unit (CSV)."""
    text = clean(text)
    shown = text[1:-1].strip() if text.startswith("[") and text.endswith("]") else text
    found = _number(kind, text, bare) if kind in _UNITS else _KINDS[kind](text)
    if found is not None:
        return found
    if not shown:
        return ReportedValue(None, "the source leaves it empty")
    if _REASONS.fullmatch(shown):
        return ReportedValue(None, shown[:80])
    return ReportedValue(None, f"not understood: {shown[:60]}", strange=True)


def address(text: str) -> str | None:
    """Return a PCI address as the kernel writes it, `0000:17:00.0`; None if it is none."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def time(text: str) -> str | None:
    """Return the time of an output in ISO 8601; None where it is not written as nvidia-smi writes it."""
    if found := _TIME_OF_QUERY.fullmatch(text.strip()):
        return f"{found[1]}-{found[2]}-{found[3]}T{found[4]}"
    found = _TIME_OF_LOG.fullmatch(clean(text))
    if found is None or found[1] not in _MONTHS:
        return None
    return f"{found[4]}-{_MONTHS.index(found[1]) + 1:02}-{int(found[2]):02}T{found[3]}"


def _number(kind: str, text: str, bare: bool) -> ReportedValue | None:
    match = _NUMBER.fullmatch(text)
    if match is None or not (match[2] in _UNITS[kind] or (bare and not match[2])):
        return None
    number = float(match[1])
    if kind == "W":
        return ReportedValue(number)
    if number != int(number):
        return None
    return ReportedValue(int(number) * 1000 if kind == "us" else int(number))


def _count(text: str) -> ReportedValue | None:
    return ReportedValue(int(text)) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else None


def _banks(text: str) -> ReportedValue | None:
    """Return a number of memory banks: "640 bank(s)"."""
    return _count(text.removesuffix("bank(s)").rstrip())


def _step(text: str) -> ReportedValue | None:
    """A PCIe generation; the driver reports 0 where it is unknown."""
    if text == "0":
        return ReportedValue(None, "the driver reports 0")
    return ReportedValue(int(text)) if re.fullmatch(r"[1-9]", text, re.ASCII) else None


def _width(text: str) -> ReportedValue | None:
    match = re.fullmatch(r"x?(\d{1,2})x?", text, re.ASCII)
    if match is None:
        return None
    return (
        ReportedValue(int(match[1])) if int(match[1]) else ReportedValue(None, f"the driver reports {text}")
    )


def _words(text: str) -> ReportedValue | None:
    return None if not text or _REASONS.fullmatch(text.strip("[]")) else ReportedValue(text[:200])


def _lower(text: str) -> ReportedValue | None:
    if text.lower() == "none":
        return ReportedValue("none")
    return (
        ReportedValue(text.lower())
        if re.fullmatch(r"[A-Za-z][A-Za-z -]{2,30}", text) and _words(text)
        else None
    )


def _fabric(text: str) -> ReportedValue | None:
    """A state or an error in the driver's words. A driver was seen to write `state  Completed` in a CSV."""
    return _lower(re.sub(r"(?:state|status) +(?=\w)", "", text, flags=re.IGNORECASE))


def _action(text: str) -> ReportedValue | None:
    """The action that the driver requests, by its name: `none`, `drain and reset`. There may be new ones."""
    if text.lower() == "none":
        return ReportedValue("none")
    return (
        ReportedValue(text.lower())
        if re.fullmatch(r"[A-Za-z][A-Za-z0-9 ]{2,40}", text) and _words(text)
        else None
    )


def _mode(text: str) -> ReportedValue | None:
    word = re.sub(r"[ -]+", "_", text.lower())
    known = ("default", "exclusive_thread", "prohibited", "exclusive_process")
    return ReportedValue(word) if word in known else None


def _uuid(text: str) -> ReportedValue | None:
    if _MASKED.fullmatch(text):
        return ReportedValue(None, "masked in the capture")
    return ReportedValue(text) if _UUID.fullmatch(text) else None


def _address(text: str) -> ReportedValue | None:
    found = address(text)
    return None if found is None else ReportedValue(found)


def _device(text: str) -> ReportedValue | None:
    """The chip's number: the upper half of the PCI id, whose lower half is NVIDIA's, 10DE."""
    match = re.fullmatch(r"(?:0x)?([0-9a-f]{4})([0-9a-f]{4})", text, re.IGNORECASE | re.ASCII)
    if match is None:
        return None
    if match[1] == "0000" or match[2].lower() != "10de":
        return ReportedValue(None, f"the driver reports {text}")
    return ReportedValue(match[1].lower())


def _switch(text: str) -> ReportedValue | None:
    found = _SWITCHES.get(text.lower())
    return None if found is None else ReportedValue(found)


def _yes_as_1(text: str) -> ReportedValue | None:
    found = _SWITCHES.get(text.lower())
    return None if found is None else ReportedValue(int(found))


def _active(text: str) -> ReportedValue | None:
    states = {"active": True, "not active": False}
    found = states.get(text.lower())
    return None if found is None else ReportedValue(found)


def _pstate(text: str) -> ReportedValue | None:
    return ReportedValue(text) if re.fullmatch(r"P(?:\d|1[0-5])", text, re.ASCII) else None


def _mask(text: str) -> ReportedValue | None:
    return (
        ReportedValue(int(text, 16))
        if re.fullmatch(r"0x[0-9a-f]{1,16}", text, re.IGNORECASE | re.ASCII)
        else None
    )


def _version(text: str) -> ReportedValue | None:
    return ReportedValue(text) if _VERSION.fullmatch(text) else None


def _process(text: str) -> ReportedValue | None:
    found = _PROCESSES.get(text)
    return None if found is None else ReportedValue(found)


def _program(text: str) -> ReportedValue | None:
    """A process's program without folders and arguments: those are personal."""
    if _words(text) is None or text.startswith("["):
        return None
    last = text.rpartition("\\")[2] if "\\" in text else text.split()[0].rpartition("/")[2]
    return ReportedValue(last[:80]) if last else ReportedValue(None, "the source has no name")


def _section(text: str) -> ReportedValue | None:
    """A section whose lines are left out has only a reason."""
    return None


_KINDS: dict[str, Callable[[str], ReportedValue | None]] = {
    "section": _section,
    "count": _count,
    "banks": _banks,
    "step": _step,
    "width": _width,
    "words": _words,
    "lower": _lower,
    "fabric": _fabric,
    "action": _action,
    "mode": _mode,
    "uuid": _uuid,
    "address": _address,
    "device": _device,
    "switch": _switch,
    "yes": _switch,
    "yes as 1": _yes_as_1,
    "active": _active,
    "pstate": _pstate,
    "mask": _mask,
    "version": _version,
    "process": _process,
    "program": _program,
}
