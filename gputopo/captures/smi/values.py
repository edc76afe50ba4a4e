"""The values that `nvidia-smi` prints, parsed by kind: a number with its unit, a switch, an address.

If there is no value, the reason is the source's text. A value that cannot be parsed as its kind is never
guessed: it is marked as strange, and listed.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gputopo.values.fields import kernel_address


class ReportedValue(NamedTuple):
    """A value, or the reason why there is none; `strange`: the text is not known."""

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
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z-]{1,80}", re.ASCII)
_CUT_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{0,26}", re.IGNORECASE)
_MASKED = re.compile(r"GPU-[0Xx*-]+")
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
    """Return a number of GPUs; None for anything else, such as digits of other scripts or long numbers."""
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text, re.ASCII) else None


def is_whole(text: str) -> bool:
    """Return whether the text surely was not cut at its end: it ends with a unit or a known word."""
    return _WHOLE.search(text) is not None


def parse(kind: str, text: str, *, bare: bool = False) -> ReportedValue:
    """Parse a value as a kind of the tables. `bare`: a number may have no unit (CSV)."""
    text = clean(text)
    shown = text[1:-1].strip() if text.startswith("[") and text.endswith("]") else text
    value = _number(kind, text, bare) if kind in _UNITS else _KINDS[kind](text)
    if value is not None:
        return value
    if not shown:
        return ReportedValue(None, "the source leaves it empty")
    if _REASONS.fullmatch(shown):
        return ReportedValue(None, shown[:80])
    return ReportedValue(None, f"not understood: {shown[:60]}", strange=True)


def parse_time(text: str) -> str | None:
    """Return the time of an output in ISO 8601, or None if it is not in a format of nvidia-smi."""
    if match := _TIME_OF_QUERY.fullmatch(text.strip()):
        return f"{match[1]}-{match[2]}-{match[3]}T{match[4]}"
    match = _TIME_OF_LOG.fullmatch(clean(text))
    if match is None or match[1] not in _MONTHS:
        return None
    return f"{match[4]}-{_MONTHS.index(match[1]) + 1:02}-{int(match[2]):02}T{match[3]}"


def _number(kind: str, text: str, bare: bool) -> ReportedValue | None:
    match = _NUMBER.fullmatch(text)
    if match is None or not (match[2] in _UNITS[kind] or (bare and not match[2])):
        return None
    number = float(match[1])
    if number < 0 and kind != "C":
        return None
    if kind == "W":
        return ReportedValue(number)
    if number != int(number):
        return None
    return ReportedValue(int(number) * 1000 if kind == "us" else int(number))


def _form(
    pattern: str, convert: Callable[[str], Any] = str, *, silent: str = r"(?!)"
) -> Callable[[str], ReportedValue | None]:
    """Return the parser of a form, whose first group is the value.

    `silent`: what the driver writes if it has no value.
    """
    form, no_value = (re.compile(expression, re.IGNORECASE | re.ASCII) for expression in (pattern, silent))

    def parse_form(text: str) -> ReportedValue | None:
        if no_value.fullmatch(text):
            return ReportedValue(None, f"the driver reports {text}")
        match = form.fullmatch(text)
        return None if match is None else ReportedValue(convert(match[1]))

    return parse_form


def _words(text: str) -> ReportedValue | None:
    return None if not text or _REASONS.fullmatch(text.strip("[]")) else ReportedValue(text[:200])


def _lower(text: str) -> ReportedValue | None:
    """Parse the name of a state or an action: `none`, `drain and reset`. New names are accepted."""
    if text.lower() != "none" and not (re.fullmatch(r"[A-Za-z][A-Za-z0-9 -]{2,40}", text) and _words(text)):
        return None
    return ReportedValue(text.lower())


def _uuid(text: str) -> ReportedValue | None:
    if _MASKED.fullmatch(text):
        return ReportedValue(None, "masked in the capture")
    if _CUT_UUID.fullmatch(text):
        return ReportedValue(None, "cut in the capture")
    return ReportedValue(text) if _UUID.fullmatch(text) else None


def _listed(known: Mapping[str, Any]) -> Callable[[str], ReportedValue | None]:
    """Return a parser of the known words, in any case."""
    words = {word.lower(): value for word, value in known.items()}
    return lambda text: ReportedValue(words[text.lower()]) if text.lower() in words else None


def _program(text: str) -> ReportedValue | None:
    """Parse a process's program, without folders and arguments, which are personal."""
    if _words(text) is None or text.startswith("["):
        return None
    last = text.rpartition("\\")[2] if "\\" in text else text.split()[0].rpartition("/")[2]
    return ReportedValue(last[:80]) if last else ReportedValue(None, "the source has no name")


_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
_KINDS: dict[str, Callable[[str], ReportedValue | None]] = {
    "section": lambda text: None,  # a section without lines has only a reason
    "count": _form(r"(\d{1,18})", int),
    "banks": _form(r"(\d{1,18})(?: ?bank\(s\))?", int),  # memory banks
    "step": _form("([1-9])", int, silent="0"),  # a PCIe generation
    "width": _form(r"x?(\d{1,2})x?", int, silent="x?00?x?"),
    "words": _words,
    "lower": _lower,
    # One driver wrote `state  Completed` in a CSV.
    "fabric": lambda text: _lower(re.sub(r"(?:state|status) +(?=\w)", "", text, flags=re.IGNORECASE)),
    "action": _lower,
    "mode": lambda text: _listed({mode: mode for mode in _MODES})(re.sub(r"[ -]+", "_", text)),
    "uuid": _uuid,
    "address": lambda text: ReportedValue(address) if (address := kernel_address(text)) else None,
    # The chip's number: the upper half of the PCI id, whose lower half is NVIDIA's, 10DE.
    "device": _form("(?:0x)?([0-9a-f]{4})10de", str.lower, silent="(?:0x)?(?:0000.{4}|.{4}(?!10de).{4})"),
    "subsystem": _form("(?:0x)?([0-9a-f]{8})", str.lower, silent="(?:0x)?0{8}"),
    "switch": _listed(_SWITCHES),
    "yes": _listed(_SWITCHES),
    "yes as 1": _listed({word: int(value) for word, value in _SWITCHES.items()}),
    "active": _listed({"active": True, "not active": False}),
    "pstate": _form(r"(P(?:\d|1[0-5]))"),
    "mask": _form("(0x[0-9a-f]{1,16})", lambda text: int(text, 16)),
    "version": _form(r"(\d{1,4}(?:\.\d{1,5}){1,3})"),
    "process": _listed(_PROCESSES),
    "program": _program,
}
