"""The XML of `nvidia-smi -q -x`, of any driver: text in, Machine out.

Names that differ between drivers are declared with the facts (see names), names without a place in a Machine
are in unplaced_names; any other element is Unread with its line. GPUs are numbered in the order of the file,
which is NVML's order. Entities are refused, and the DTD that the file refers to is never loaded.
"""

import re
from typing import TYPE_CHECKING

from gputopo.captures.ledger import Format, unread
from gputopo.captures.smi import values
from gputopo.captures.smi.gpu import Entry, ReportedGpu
from gputopo.captures.smi.machine import machine
from gputopo.captures.smi.names import Named, names
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine, Unread

if TYPE_CHECKING:
    from defusedxml.ElementTree import DefusedXMLParser

SOURCE = "nvidia-smi -q -x"

_HINT = "copy the whole output of `nvidia-smi -q -x` again"
_ROOT = "nvidia_smi_log"
_START = re.compile(rf"<\?xml\b|<!DOCTYPE\s+{_ROOT}\b|<{_ROOT}\b")
_END = f"</{_ROOT}>"
_DEEPEST = 24  # the deepest element of any driver is at 7


def detect(text: str) -> bool:
    """Return whether the text has an nvidia-smi log in XML, or the start of one."""
    return re.search(rf"<(?:!DOCTYPE\s+)?{_ROOT}\b", text) is not None


def parse(text: str, *, origin: str) -> Machine:
    """Read the log; what a terminal left before and after it is skipped.

    Raises InputError if the XML is cut, dangerous or too deep, or has no GPU although it counts some.
    """
    begin = _START.search(text)
    start = begin.start() if begin else 0
    end = text.find(_END, start)
    if end < 0:
        raise InputError(f"{origin} is not complete XML: it has no {_END}", _HINT)
    log = _Log(origin, text.count("\n", 0, start))
    _feed(log, text[start : end + len(_END)], origin)
    if _START.search(text, end):
        line = text.count("\n", 0, end) + 2
        log.not_understood.append(
            unread(SOURCE, line, "a second nvidia-smi log begins; only the first is read")
        )
    if not log.gpus and log.attached != "0":
        raise InputError(f"{origin}: there is no <gpu> in the nvidia-smi log", _HINT)
    return machine(
        SOURCE,
        dict(enumerate(log.gpus)),
        driver_values=log.driver,
        not_understood=log.not_understood,
        attached=log.attached,
        time=log.time,
    )


def _feed(log: "_Log", text: str, origin: str) -> None:
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import DefusedXMLParser, ParseError

    parser = DefusedXMLParser(target=log)
    log.parser = parser
    try:
        parser.feed(text)
        parser.close()
    except DefusedXmlException as error:
        raise InputError(
            f"{origin} declares XML entities, which nvidia-smi never writes",
            "give the file as nvidia-smi wrote it",
        ) from error
    except ParseError as error:
        raise InputError(f"{origin} is not complete XML: {error}", _HINT) from error
    except (ValueError, LookupError) as error:
        raise InputError(f"{origin} is XML that cannot be read: {error}", _HINT) from error


class _Log:
    """Receives the elements from the parser one after the other, with their lines."""

    def __init__(self, origin: str, lines_before: int) -> None:
        self.origin = origin
        self.lines_before = lines_before
        self.parser: DefusedXMLParser | None = None
        self.names = names("xml")
        self.gpus: list[ReportedGpu] = []
        self.driver: list[tuple[Named, str]] = []
        self.attached: str | None = None
        self.time: str | None = None
        self.not_understood: list[Unread] = []
        self._path: list[str] = []  # the open elements below the GPU, or below the root
        self._lines: list[int] = []
        self._open: list[bool] = []  # whether each open element has child elements
        self._text: list[str] = []
        self._skipped = 0  # depth below a skipped element
        self._depth = 0
        self._in_gpu = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Handle the start of an element."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise InputError(f"{self.origin}: XML that is nested too deep", _HINT)
        if self._depth == 1:
            if tag != _ROOT:
                raise InputError(f"{self.origin}: XML of <{tag[:60]}>, not of <{_ROOT}>", _HINT)
            return
        if self._skipped:
            self._skipped += 1
            return
        if self._depth == 2 and tag == "gpu":
            self._begin_gpu(attributes.get("id"))
            return
        if self._open and not self._open[-1]:
            self._open[-1] = True
            if not self._take(None, "".join(self._text), self._lines[-1]):
                self._skipped = 1  # its heading is listed: the content below it adds nothing
                return
        self._path.append(tag.lower())
        self._lines.append(self._line())
        self._open.append(False)
        self._text.clear()

    def data(self, text: str) -> None:
        """Handle text of the open element."""
        if not self._skipped:
            self._text.append(text)

    def end(self, tag: str) -> None:
        """Handle the end of an element."""
        self._depth -= 1
        if self._skipped > 1 or (self._skipped == 1 and not self._path):
            self._skipped -= 1
            return
        self._skipped = 0
        if not self._path:
            self._in_gpu = self._in_gpu and self._depth > 1
            return
        if not self._open[-1]:
            self._take("".join(self._text), "", self._lines[-1])
        self._path.pop()
        self._lines.pop()
        self._open.pop()
        self._text.clear()

    def close(self) -> None:
        """Handle the end of the document."""

    def _line(self) -> int:
        assert self.parser is not None
        return self.lines_before + int(self.parser.parser.CurrentLineNumber)

    def _begin_gpu(self, address: str | None) -> None:
        self._in_gpu = True
        self.gpus.append(ReportedGpu(self.names))
        if address is not None:
            self._add(Entry("pci/pci_bus_id", address, self._line(), f"<gpu id={address!r}>"))

    def _take(self, text: str | None, beside: str, line: int) -> bool:
        """Read an element: its text, or None if it has children. Returns False if not understood."""
        path = "/".join(self._path)
        if beside.strip():
            self._note(line, f"<{self._path[-1]}> {beside}")
        shown = f"<{self._path[-1]}> {text or ''}"
        if self._in_gpu:
            return self._add(Entry(path, text if text is None else values.clean(text), line, shown))
        return self._take_above_gpus(path, text, line, shown)

    def _add(self, entry: Entry) -> bool:
        understood = self.gpus[-1].add(entry)
        if not understood:
            self._note(entry.line, entry.shown)
        return understood

    def _take_above_gpus(self, path: str, text: str | None, line: int, shown: str) -> bool:
        if text is not None and path in self.names.driver:
            self.driver.append((self.names.driver[path], text))
        elif text is not None and path == "attached_gpus":
            self.attached = text.strip()
        elif text is not None and path == "timestamp":
            self.time = text
        elif not self.names.is_unplaced(path):
            self._note(line, shown)
            return False
        return True

    def _note(self, line: int, text: str) -> None:
        self.not_understood.append(unread(SOURCE, line, text))


FORMAT = Format(
    "`nvidia-smi -q -x` XML",
    "GPUs with clocks, power, temperature, throttle reasons, ECC, processes",
    detect,
    parse,
)
