"""One GPU in one output of `nvidia-smi`: facts are collected line by line, then become a Gpu."""

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gputopo.captures.smi import values
from gputopo.captures.smi.key_names import BASE_REASONS, DRAIN_RECOMMENDED, RECOVERY, RESET_REQUIRED
from gputopo.captures.smi.names import Names
from gputopo.captures.smi.values import LOST, NEEDS_RESET, ReportedValue
from gputopo.reference import CLOCK_EVENT_BITS, decode_clock_events
from gputopo.values.fields import field_at
from gputopo.values.machine import Gpu, GpuProcess
from gputopo.values.samples import gpu_with

_NO_PROCESSES = ("", "none")
_INSTANCES = ("mig device", "mig_devices")
# Facts whose last part is a key of a dictionary in the Gpu.
_DICTIONARIES = ("violation_ns.", "ecc.counts.", "fabric.health.")
_REASON = "throttle.reasons."
_PART = "only a part of the reasons is reported"
_ERROR = re.compile(r"unknown error|err!+", re.IGNORECASE)
_FEWEST_ERRORS = 3  # a single fan or sensor may fail on a GPU that works
# The counts that add up to NVML's totals, for a GPU that does not report totals. One complete set is used.
_PARTS = {
    "corrected": (("sram_correctable", "dram_correctable"),),
    "uncorrected": (
        ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable"),
        ("sram_uncorrectable", "dram_uncorrectable"),
    ),
}


class Entry(NamedTuple):
    """One entry of the output: its path in lower case, its text (None: a heading) and its line number."""

    path: str
    text: str | None
    line: int
    shown: str  # the whole line, for the list of lines that were not understood


@dataclass
class ReportedGpu:
    """Values reported of one GPU."""

    names: Names
    queried: bool = False  # by --query-gpu: numbers may have no unit
    # The values of each fact by the rank of the name. The value with the lowest rank is used.
    reported: dict[str, dict[int, ReportedValue]] = field(default_factory=dict)
    processes: list[dict[str, Any]] | None = None
    no_processes: str | None = None
    instances: int | None = None
    instances_end: bool = False  # a line follows the last MIG instance, so the list was not cut
    lost: bool = False
    needs_reset: bool = False
    notes: dict[str, str] = field(default_factory=dict)  # more reasons, by fact; "" is for the whole GPU

    @property
    def address(self) -> str | None:
        """The PCI address, if it was reported."""
        reported = self.reported.get("pci_address", {})
        return next((value.value for value in reported.values() if value.value is not None), None)

    def add(self, entry: Entry) -> bool:
        """Read one entry of the output. Returns False if it is not understood."""
        if self.instances and not entry.path.startswith(_INSTANCES):
            self.instances_end = True
        if entry.text is None:
            if entry.path in ("mig device", "mig_devices/mig_device"):
                self.instances = (self.instances or 0) + 1
            if entry.path == "processes/process_info":
                self.processes = [*(self.processes or ()), {}]
            known = entry.path in self.names.sections or entry.path in self.names.facts
            return known or self.names.is_unplaced(entry.path)
        self.notice(entry.text)
        if named := self.names.facts.get(entry.path):
            value = values.parse(named.kind, entry.text, bare=self.queried)
            return self._report(named.fact, named.rank, value)
        if entry.path in self.names.processes:
            return self._process(entry)
        is_none = entry.text.lower() in _NO_PROCESSES
        if entry.path in ("processes", "compute processes"):
            if is_none:
                self.processes = self.processes or []
                return True
            value = values.parse("section", entry.text)
            self.no_processes = value.reason
            return not value.strange
        if entry.path == "mig_devices" and is_none:
            self.instances = 0
            return True
        if entry.path in self.names.sections:  # a reason instead of its lines: `Remapped Rows : N/A`
            value = values.parse("section", entry.text)
            for named in self.names.below(entry.path):
                self._report(named.fact, named.rank, value)
            return not value.strange
        return self.names.is_unplaced(entry.path)

    def notice(self, text: str) -> None:
        """Read a text that replaces a value and is about the whole GPU."""
        said = values.clean(text).strip("[] ").lower()
        self.lost = self.lost or said == LOST
        self.needs_reset = self.needs_reset or said == NEEDS_RESET

    def _report(self, fact: str, rank: int, value: ReportedValue) -> bool:
        by_name = self.reported.setdefault(fact, {})
        before = by_name.setdefault(rank, value)
        if before != value:
            twice = f"reported twice, as {_shown(before)} and as {_shown(value)}"
            by_name[rank] = before if before.twice else ReportedValue(None, twice, strange=True, twice=True)
            return False
        return not value.strange

    def _process(self, entry: Entry) -> bool:
        row = self.names.processes[entry.path]
        value = values.parse(row.kind, entry.text or "")
        processes = self.processes = self.processes or []
        if row.fact == "pid" and (not processes or "pid" in processes[-1]):
            processes.append({})
        if not processes or row.fact in processes[-1]:
            return False
        processes[-1][row.fact] = value.value
        return not value.strange

    # The collected facts as a Gpu

    def gpu(self, index: int) -> tuple[Gpu, dict[str, str]]:
        """Return the GPU, and why facts are missing, by the fact's path within the GPU."""
        values: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for fact, by_name in self.reported.items():
            rank, best = min(by_name.items(), key=lambda named: (named[1].value is None, named[0]))
            # An error for the average power is a fault, even if there is a value for the present power.
            better = (by_name[name] for name in range(rank) if name in by_name)
            best = next((value for value in better if _ERROR.fullmatch(value.reason or "")), best)
            if best.value is None:
                missing[fact] = best.reason or "not reported"
            else:
                values[fact] = best.value
        errors = sum(1 for why in missing.values() if _ERROR.fullmatch(why))
        if errors >= _FEWEST_ERRORS and not any(
            "." in fact or field_at(Gpu, fact).stability != "fixed" for fact in values
        ):  # only the identity was answered
            self.lost = True
            self.notes.setdefault("", "an error instead of every reading")
        self._throttle(values, missing)
        _recovery(values, missing, refused=self.needs_reset)
        _totals(values, missing, may_lack=not self.queried)
        self._gather(values, missing)
        return gpu_with(index, values | {"lost": self.lost}), missing | self.notes

    def _throttle(self, values: dict[str, Any], missing: dict[str, str]) -> None:
        mask = values.get("throttle.mask")
        states = {
            fact.removeprefix(_REASON): values.pop(fact) for fact in [*values] if fact.startswith(_REASON)
        }
        reasons = {
            fact.removeprefix(_REASON): missing.pop(fact) for fact in [*missing] if fact.startswith(_REASON)
        }
        if mask is not None:
            values["throttle.reasons"] = decode_clock_events(mask)
        elif (whole := all(name in states for name in BASE_REASONS)) or any(states.values()):
            order = (*CLOCK_EVENT_BITS, *states)
            values["throttle.reasons"] = tuple(dict.fromkeys(name for name in order if states.get(name)))
            if not whole:
                missing["throttle.reasons"] = _PART
        elif reasons:
            missing["throttle.reasons"] = next(iter(reasons.values()))
        elif states:
            missing["throttle.reasons"] = _PART

    def _gather(self, values: dict[str, Any], missing: dict[str, str]) -> None:
        """Collect the facts of each dictionary of the Gpu; an empty dictionary becomes a missing fact."""
        for prefix in _DICTIONARIES:
            keys = [fact for fact in values if fact.startswith(prefix)]
            if keys:
                values[prefix[:-1]] = {key.removeprefix(prefix): values.pop(key) for key in keys}
            elif reasons := [missing.pop(fact) for fact in [*missing] if fact.startswith(prefix)]:
                missing[prefix[:-1]] = reasons[0]
        if self.instances == 0 or (self.instances and self.instances_end):
            values["mig.instances"] = self.instances
        elif self.instances:
            missing["mig.instances"] = "the text ends in the middle of their list"
        if self.processes is not None:
            known = (GpuProcess(**process) for process in self.processes if process.get("pid") is not None)
            values["processes"] = tuple(dict.fromkeys(known))
        elif self.no_processes is not None:
            missing["processes"] = self.no_processes


def _shown(value: ReportedValue) -> str:
    return str(value.reason if value.value is None else value.value)[:60]


def _totals(values: dict[str, Any], missing: dict[str, str], *, may_lack: bool) -> None:
    """Sum the ECC counts that make up NVML's totals; GPUs since Turing may report only these counts.

    A total stays unknown if one of its parts is unknown. `may_lack`: a part that is N/A does not exist on the
    GPU. This does not hold in a query: GPUs before Turing answer N/A for SRAM (nvml.h), report their device
    memory as DRAM, and count registers and caches separately.
    """
    for since in ("volatile", "aggregate"):
        for what, sets in _PARTS.items():
            total = f"ecc.{what}_{since}"
            for parts in sets:
                facts = [f"ecc.counts.{since}.{part}" for part in parts]
                lacking = [fact for fact in facts if may_lack and missing.get(fact) == "N/A"]
                counts = [values[fact] for fact in facts if fact in values]
                if total not in values and counts and len(counts) + len(lacking) == len(facts):
                    values[total] = sum(counts)
                    missing.pop(total, None)
            if total not in values and total not in missing:
                reasons = [why for fact, why in missing.items() if fact.startswith(f"ecc.counts.{since}.")]
                if reasons:
                    missing[total] = reasons[0]


def _recovery(values: dict[str, Any], missing: dict[str, str], *, refused: bool) -> None:
    """Combine what is reported about a reset into one fact; see key_names.RECOVERY.

    `refused`: the driver wrote `GPU requires reset`, the text of NVML_ERROR_RESET_REQUIRED, instead of a
    value.
    """
    required, recommended = values.pop(RESET_REQUIRED, None), values.pop(DRAIN_RECOMMENDED, None)
    reasons = [reason for fact in (RESET_REQUIRED, DRAIN_RECOMMENDED) if (reason := missing.pop(fact, None))]
    action = values.get(RECOVERY)
    if action in (None, "none"):
        if refused or required:
            action = "reset"
        elif recommended:
            action = "drain and reset"
        elif required is False and recommended is False:
            action = "none"
    if action is not None:
        values[RECOVERY] = action
        missing.pop(RECOVERY, None)
    elif reasons:
        missing.setdefault(RECOVERY, reasons[0])
