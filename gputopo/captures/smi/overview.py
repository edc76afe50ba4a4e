"""The table that `nvidia-smi` prints without options, of any driver and system: text in, Machine out.

    |   0  Tesla V100-SXM2-16GB     On   | 00000000:00:1E.0 Off |                    0 |
    | N/A   43C    P0    39W / 300W      |      0MiB / 16130MiB |      0%      Default |

Drivers differ in widths and in the third line (MIG mode, since 450). A name that the table cuts (`Tesla V100-
SXM2...`) is not known. Several tables (`-l`, `watch`) are samples of one machine.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from gputopo.captures import merging
from gputopo.captures.ledger import Format, read_lines
from gputopo.captures.smi import values
from gputopo.captures.smi.gpu import Entry, ReportedGpu
from gputopo.captures.smi.machine import (
    Unanswered,
    identity_of,
    machine,
    parse_unanswered,
    read_unanswered,
    refuse_others,
    with_unanswered,
)
from gputopo.captures.smi.names import Named, names
from gputopo.values.errors import InputError
from gputopo.values.fields import kernel_address
from gputopo.values.machine import Machine

SOURCE = "nvidia-smi"

_HINT = "copy the whole output of `nvidia-smi` again"
_CUT = "..."
_ERROR = r"N/A|\[N/A\]|ERR!|Unknown(?: Error)?"

_HEAD = re.compile(r"\|\s*NVIDIA-SMI\s+\S")
_TIME = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}")
_VERSION = re.compile(r"\b((?:KMD|CUDA UMD|CUDA|Driver) Version)\s*:\s*([\w./!]+)")
_RULE = re.compile(r"[|+]?[-=+| ]{8,}[|+]?")
_TITLES = re.compile(
    r"\| *(?:GPU +Name|Fan +Temp|GPU +GI|GPU +PID|ID +ID|Processes:|MIG devices:|Compute processes:"
    r"|GPU +Memory)|\|[ |]*MIG M\.|\|[ |]*(?:ECC|Usage)\s*\|"
)
_GPU = re.compile(
    r" *(?P<index>\d{1,3})  ?(?P<name>\S.*?)(?: +(?P<mode>On|Off|N/A|ERR!|WDDM|TCC|MCDM|WDM))?"
    r" *\| *(?P<address>[0-9A-Fa-f:.]{7,20}) +(?P<display>On|Off|N/A) *\| *(?P<ecc>\S.*?) *"
)
_USED = rf"\d+ ?Mi?B|{_ERROR}|Not Supported"
_READINGS = re.compile(
    rf" *(?P<fan>\d{{1,3}} ?%|{_ERROR}) +(?P<temperature>\d{{1,3}} ?C|{_ERROR}) +(?P<pstate>P\d{{1,2}}"
    rf"|{_ERROR}) +(?P<draw>\d[\d.]* ?W|{_ERROR}) +/ +(?P<limit>\d[\d.]* ?W|{_ERROR})"
    rf" *\| *(?:\d{{1,3}}% +)?(?P<used>{_USED})(?: +/ +(?P<total>{_USED}))?"
    rf" *\| *(?P<utilization>\d{{1,3}} ?%|{_ERROR}) +(?P<compute>\S.*?) *"
)
_MIG = re.compile(r" *\| *\| *(?P<mode>Enabled|Disabled|N/A|ERR!)(?P<pending>\*?) *")
_INSTANCE = re.compile(r" *(?P<gpu>\d{1,3}) +\d{1,3} +\d{1,3} +\d{1,3} *\|.*")
_INSTANCE_MORE = re.compile(r" *\| *\d+ ?MiB */ *\d+ ?MiB *\|[ |]*")
_PROCESS = re.compile(
    r" *(?P<gpu>\d{1,3}) +(?:(?:N/A|\d{1,3}) +(?:N/A|\d{1,3}) +)?(?P<pid>\d{1,10})"
    r"(?: +(?P<kind>C\+G|M\+C|[CGM]))?(?: +(?P<name>\S.*?))? +(?P<memory>\d+ ?Mi?B|N/A|ERR!|Unknown\S*) *"
)
_NO_PROCESSES = re.compile(r" *No running (?:compute )?processes found *")
_NOT_SUPPORTED = re.compile(r" *(?P<gpu>\d{1,3}) +(?P<reason>Not Supported|ERROR: .*?) *")
_NO_INSTANCES = re.compile(r" *No MIG devices found *")
_MODES = {"E. Process": "Exclusive_Process", "E. Thread": "Exclusive_Thread"}
_SYSTEM = {"WDDM": "Windows", "TCC": "Windows", "MCDM": "Windows", "WDM": "Windows"}


def detect(text: str) -> bool:
    """Return whether the text has the line of a GPU, or such a table without GPUs."""
    if "NVIDIA-SMI" in text and "No running" in text and _HEAD.search(text) is not None:
        return True
    return "|" in text and any(_cells(line, _GPU) for line in text.splitlines())


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is the first line of a table, or the time above it."""
    if not any("NVIDIA-SMI" in line for line in lines):
        return "|" in lines[0] and _cells(lines[0], _GPU) is not None
    head = next((place for place, line in enumerate(lines) if _HEAD.match(line.strip())), None)
    above = [line.strip() for line in lines[:head]]
    return head is not None and all(
        _RULE.fullmatch(line) or _TIME.fullmatch(line) or parse_unanswered(line) for line in above
    )


def parse(text: str, *, origin: str) -> Machine:
    """Read the tables in a text. Raises InputError if no table has a GPU."""
    outputs: list[_Output] = []
    ahead: list[str] = []
    silent = read_unanswered(text.splitlines())

    def take(number: int, line: str) -> bool:
        line = line.replace("\t", " ")
        if _HEAD.match(line):
            time = next((above for above in ahead if _TIME.fullmatch(above)), None)
            outputs.append(_Output(time))
        ahead[:] = [*ahead[-1:], line]
        if _TIME.fullmatch(line) or _RULE.fullmatch(line) or parse_unanswered(line):
            return True
        if not outputs and _cells(line, _GPU):  # the head of the table is missing
            outputs.append(_Output(None))
        return bool(outputs) and outputs[-1].take(number, line)

    strays = read_lines(text, take).unread(SOURCE)
    if not any(output.gpus or silent for output in outputs):
        raise InputError(f"{origin}: no GPU in this table of `nvidia-smi`", _HINT)
    machines = [output.machine(silent) for output in outputs]
    identities = [identity_of(machine, "one of the tables") for machine in machines]
    # The number of GPUs is not compared: `-i` shows only some.
    refuse_others([identity._replace(attached=None) for identity in identities], origin)
    merged = merging.merge(machines)
    lines = sorted((*merged.unread, *strays), key=lambda unread: unread.line)
    return replace(merged, unread=tuple(dict.fromkeys(lines)))


def _cells(line: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """Return the match of the content of a line between its outer borders."""
    bare = line.strip().replace("\t", " ")
    return pattern.fullmatch(bare[1:-1]) if bare.startswith("|") and bare.endswith("|") else None


@dataclass
class _Output:
    """One table, line by line."""

    time: str | None
    gpus: dict[int, ReportedGpu] = field(default_factory=dict)
    driver: list[tuple[Named, str]] = field(default_factory=list)
    gpu: ReportedGpu | None = None  # the GPU of the line above
    processes: bool | None = None  # None: no list of processes so far

    def take(self, number: int, line: str) -> bool:
        """Read a line. Returns False if it is not understood."""
        if _HEAD.match(line):
            known = names("text").driver
            versions = [(known[name.lower()], value) for name, value in _VERSION.findall(line)]
            self.driver += versions
            return bool(versions)
        if _TITLES.match(line):
            self.processes = False if "rocesses:" in line and self.processes is None else self.processes
            return True
        readers: tuple[Callable[[int, str], bool], ...] = (self._process, self._no_processes)
        if self.processes is None:
            readers = (self._begin, self._readings, self._mig, self._instance)
        return any(reader(number, line) for reader in readers)

    def _begin(self, number: int, line: str) -> bool:
        cells = _cells(line, _GPU)
        if cells is None or int(cells["index"]) in self.gpus or kernel_address(cells["address"]) is None:
            return False
        self.gpu = self.gpus[int(cells["index"])] = ReportedGpu(names("csv"))
        name, ecc, mode = cells["name"], cells["ecc"], cells["mode"]
        facts = {"pci.bus_id": cells["address"], "display_active": cells["display"]}
        if name.endswith(_CUT):
            self.gpu.notes["name"] = f"cut in the table: {name}"
        else:
            facts["name"] = name
        if mode in _SYSTEM:
            self.gpu.notes["persistence_mode"] = f"not reported on {_SYSTEM[mode]}"
        elif mode is not None:
            facts["persistence_mode"] = mode
        if ecc.isdigit():
            facts |= {"ecc.mode.current": "Enabled", "ecc.errors.uncorrected.volatile.total": ecc}
        else:
            facts |= {"ecc.mode.current": "Disabled" if ecc == "Off" else ecc}
        return self._add(number, line, facts)

    def _readings(self, number: int, line: str) -> bool:
        cells = _cells(line, _READINGS)
        if cells is None:
            return False
        compute = " ".join(cells["compute"].split())
        return self._add(
            number,
            line,
            {
                "fan.speed": cells["fan"],
                "temperature.gpu": cells["temperature"],
                "pstate": cells["pstate"],
                "power.draw": cells["draw"],
                "power.limit": cells["limit"],
                "memory.used": cells["used"],
                "memory.total": cells["total"] or cells["used"],
                "utilization.gpu": cells["utilization"],
                "compute_mode": _MODES.get(compute, compute),
            },
        )

    def _mig(self, number: int, line: str) -> bool:
        cells = _cells(line, _MIG)
        if cells is None:
            return False
        facts = {"mig.mode.current": cells["mode"]}
        if cells["pending"]:
            facts["mig.mode.pending"] = "Disabled" if cells["mode"] == "Enabled" else "Enabled"
        return self._add(number, line, facts)

    def _instance(self, number: int, line: str) -> bool:
        cells = _cells(line, _INSTANCE)
        if cells is not None and int(cells["gpu"]) in self.gpus:
            gpu = self.gpus[int(cells["gpu"])]
            gpu.instances = (gpu.instances or 0) + 1
            return True
        return bool(_cells(line, _INSTANCE_MORE) or _cells(line, _NO_INSTANCES))

    def _process(self, number: int, line: str) -> bool:
        cells = _cells(line, _PROCESS)
        gpu = self.gpus.get(int(cells["gpu"])) if cells else None
        if cells is None or gpu is None:
            return False
        self.processes = True
        kind, name = cells["kind"], cells["name"]
        of_process = {
            "pid": int(cells["pid"]),
            "kind": values.parse("process", kind).value if kind else None,
            "name": _program(name) if name else None,
            "memory_mib": values.parse("MiB", cells["memory"]).value,
        }
        gpu.processes = [*(gpu.processes or []), of_process]
        return True

    def _no_processes(self, number: int, line: str) -> bool:
        if _cells(line, _NO_PROCESSES):
            self.processes = True
            return True
        cells = _cells(line, _NOT_SUPPORTED)
        if cells is None or int(cells["gpu"]) not in self.gpus:
            return False
        self.gpus[int(cells["gpu"])].no_processes = cells["reason"]
        return True

    def _add(self, number: int, line: str, facts: dict[str, str]) -> bool:
        if self.gpu is None:
            return False
        understood = [self.gpu.add(Entry(path, text, number, line)) for path, text in facts.items()]
        return all(understood)

    def machine(self, unanswered: Iterable[Unanswered]) -> Machine:
        """Return what the table shows, and the GPUs that did not answer."""
        for gpu in self.gpus.values():
            if self.processes is not None:  # the GPU table is complete, and so are its instances
                gpu.instances_end = True
            if self.processes and gpu.processes is None and gpu.no_processes is None:
                gpu.processes = []
        return machine(
            SOURCE,
            with_unanswered(self.gpus, unanswered, names("csv"), numbered=True),
            driver_values=self.driver,
            not_understood=(),
            attached=None,
            time=self.time,
            without_mask=False,
        )


def _program(shown: str) -> str | None:
    """Return a process's program, or None if the table cut its name: `...conda3/envs/x` may be a folder."""
    if shown.endswith(_CUT) or (shown.startswith(_CUT) and not re.search(r"[/\\]\S+$", shown)):
        return None
    name = values.parse("program", shown.removeprefix(_CUT)).value
    return name if isinstance(name, str) else None


FORMAT = Format(
    "the table of `nvidia-smi`",
    "names, PCI addresses, driver, power, memory, load, ECC, MIG, processes",
    detect,
    parse,
    begins=begins,
)
