"""The XML of `nvidia-smi -q -x`, of any driver: text in, Machine out.

Names that differ between drivers are declared with the facts (see names), names without a place in a Machine
are in unplaced_names; any other element is Unread with its line. GPUs are numbered in the order of the file,
which is NVML's order. Entities are refused, and the DTD that the file refers to is never loaded.
"""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gputopo.captures.ledger import Format, unread
from gputopo.captures.smi import values
from gputopo.captures.smi.gpu import Entry, ReportedGpu
from gputopo.captures.smi.machine import machine
from gputopo.captures.smi.names import Named, names
from gputopo.captures.xml_document import XmlDocument, parse_xml
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine, Unread

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

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
    document = parse_xml(text[start : end + len(_END)], origin=origin, hint=_HINT)
    log = _Log(origin, document, text.count("\n", 0, start))
    for element in document.root:
        if element.tag == "gpu":
            log.take_gpu(element)
        else:
            log.take(element, None)
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


@dataclass(slots=True)
class _Log:
    """The content of the elements so far."""

    origin: str
    document: XmlDocument
    lines_before: int
    gpus: list[ReportedGpu] = field(default_factory=list)
    driver: list[tuple[Named, str]] = field(default_factory=list)
    attached: str | None = None
    time: str | None = None
    not_understood: list[Unread] = field(default_factory=list)

    def take_gpu(self, element: "Element") -> None:
        """Read a GPU and the elements below it."""
        gpu = ReportedGpu(names("xml"))
        self.gpus.append(gpu)
        if (address := element.get("id")) is not None:
            shown = f"<gpu id={address!r}>"
            if not gpu.add(Entry("pci/pci_bus_id", address, self._line(element), shown)):
                self._note(element, shown)
        for child in element:
            self.take(child, gpu)

    def take(self, element: "Element", gpu: ReportedGpu | None, above: tuple[str, ...] = ()) -> None:
        """Read an element and those below it. If its name is not understood, only the name is listed."""
        if len(above) > _DEEPEST:
            raise InputError(f"{self.origin}: XML that is nested too deep", _HINT)
        tag = element.tag.lower()
        path = (*above, tag)
        text = None if len(element) else element.text or ""
        if text is None and (element.text or "").strip():
            self._note(element, f"<{tag}> {element.text}")
        shown = f"<{tag}> {text or ''}"
        if gpu is None:
            understood = self._take_above_gpus("/".join(path), text)
        else:
            cleaned = text if text is None else values.clean(text)
            understood = gpu.add(Entry("/".join(path), cleaned, self._line(element), shown))
        if not understood:
            self._note(element, shown)
            return
        for child in element:
            self.take(child, gpu, path)

    def _take_above_gpus(self, path: str, text: str | None) -> bool:
        if text is not None and path in names("xml").driver:
            self.driver.append((names("xml").driver[path], text))
        elif text is not None and path == "attached_gpus":
            self.attached = text.strip()
        elif text is not None and path == "timestamp":
            self.time = text
        else:
            return names("xml").is_unplaced(path)
        return True

    def _line(self, element: "Element") -> int:
        return self.lines_before + self.document.lines[element]

    def _note(self, element: "Element", text: str) -> None:
        self.not_understood.append(unread(SOURCE, self._line(element), text))


FORMAT = Format(
    "`nvidia-smi -q -x` XML",
    "GPUs with clocks, power, temperature, throttle reasons, ECC, processes",
    detect,
    parse,
)
