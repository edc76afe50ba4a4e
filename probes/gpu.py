"""Reads one GPU through the NVML door: every fact by itself, so that a refused one costs nothing else."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from gputopo.machine import (
    ClockMhz,
    ClocksMhz,
    Ecc,
    Gpu,
    GpuProcess,
    MemoryMib,
    Mig,
    NvLink,
    Pcie,
    PowerW,
    RemappedRows,
    RetiredPages,
    TemperatureC,
    Throttle,
    UtilizationPercent,
)
from gputopo.probes.host import cpu_list
from gputopo.probes.nvml import LOST, Handle, NotReadError, Nvml
from gputopo.probes.nvml_words import NVLINK_ERRORS, PROCESS_KINDS, VIOLATIONS, throttle_reasons

T = TypeVar("T")

_NVLINKS_AT_MOST = 64  # NVML_NVLINK_MAX_LINKS is 36 in the newest header


class Notes:
    """Asks for facts and notes the reason of each that was not given, under its path."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self.lost = False

    def take(self, paths: str | Iterable[str], ask: Callable[[], T]) -> T | None:
        """Give the answer, or None after noting the reason under each path that it would have filled."""
        try:
            return ask()
        except NotReadError as error:
            self.lost = self.lost or error.reason == LOST
            for path in [paths] if isinstance(paths, str) else paths:
                self.missing[path] = error.reason
            return None

    def gather(self, path: str, asks: dict[str, Callable[[], T]]) -> dict[str, T]:
        """Give the answers that there are by name; one note for the whole where all have the same reason."""
        notes = Notes()
        taken = {name: notes.take(f"{path}.{name}", ask) for name, ask in asks.items()}
        self.lost = self.lost or notes.lost
        reasons = set(notes.missing.values())
        if len(notes.missing) == len(asks) and len(reasons) == 1:
            self.missing[path] = reasons.pop()
        else:
            self.missing.update(notes.missing)
        return {name: value for name, value in taken.items() if value is not None}


def read_gpu(nvml: Nvml, index: int) -> tuple[Gpu, Handle | None, dict[str, str]]:
    """Give the GPU at an index, its handle, and why facts are missing, by path (`gpus[0].name`).

    A GPU that was counted and has no handle has only its index; every fact of it has the same reason.
    """
    notes = Notes()
    handle = notes.take(f"gpus[{index}]", lambda: nvml.handle(index))
    if handle is None:
        reason = notes.missing[f"gpus[{index}]"]
        gpu = Gpu(index=index, lost=notes.lost)
        return gpu, None, missing_everywhere(gpu, reason)
    gpu = _GpuReader(nvml, handle, index, notes).read()
    return msgspec.structs.replace(gpu, lost=notes.lost), handle, notes.missing


def missing_everywhere(gpu: Gpu, reason: str) -> dict[str, str]:
    """Give the reason under the path of every fact of the GPU that is None."""
    return {f"gpus[{gpu.index}].{path}": reason for path in absent_facts(gpu)}


def absent_facts(value: msgspec.Struct, prefix: str = "") -> list[str]:
    """Give the paths of the facts that are None in a value and in the values within it."""
    paths: list[str] = []
    for name in value.__struct_fields__:
        fact = getattr(value, name)
        if fact is None:
            paths.append(prefix + name)
        elif isinstance(fact, msgspec.Struct):
            paths += absent_facts(fact, f"{prefix}{name}.")
    return paths


class _GpuReader:
    """Puts together one Gpu; one method a part of it."""

    def __init__(self, nvml: Nvml, handle: Handle, index: int, notes: Notes) -> None:
        self.nvml = nvml
        self.handle = handle
        self.index = index
        self.notes = notes
        self.path = f"gpus[{index}]."

    def take(self, fact: str, ask: Callable[[], T]) -> T | None:
        return self.notes.take(self.path + fact, ask)

    def take_parts(self, fact: str, names: Iterable[str], ask: Callable[[], tuple[T, ...]]) -> dict[str, T]:
        """Give the parts of one answer by name, or nothing after noting the reason under each."""
        names = tuple(names)
        told = self.notes.take([f"{self.path}{fact}.{name}" for name in names], ask)
        return {} if told is None else dict(zip(names, told, strict=True))

    def read(self) -> Gpu:
        nvml, handle = self.nvml, self.handle
        cpus = self.take("cpu_affinity", lambda: nvml.cpu_affinity(handle))
        return Gpu(
            index=self.index,
            uuid=self.take("uuid", lambda: nvml.uuid(handle)),
            name=self.take("name", lambda: nvml.name(handle)),
            pci_address=self.take("pci_address", lambda: nvml.pci_address(handle)),
            numa_node=self.take("numa_node", lambda: nvml.numa_node(handle)),
            cpu_affinity=None if cpus is None else cpu_list(cpus),
            clocks_mhz=ClocksMhz(
                graphics=self.clock("graphics"),
                sm=self.clock("sm"),
                memory=self.clock("memory"),
                video=self.clock("video"),
            ),
            pstate=self.take("pstate", lambda: nvml.pstate(handle)),
            throttle=self.throttle(),
            violation_ns=self.violations(),
            power_w=self.power(),
            temperature_c=self.temperature(),
            pcie=self.pcie(),
            memory_mib=self.memory(),
            utilization_percent=self.utilization(),
            ecc=self.ecc(),
            remapped_rows=self.remapped_rows(),
            retired_pages=self.retired_pages(),
            mig=self.mig(),
            compute_mode=self.take("compute_mode", lambda: nvml.compute_mode(handle)),
            persistence_mode=self.take("persistence_mode", lambda: nvml.persistence_mode(handle)),
            processes=self.processes(),
            nvlinks=self.nvlinks(),
        )

    def clock(self, name: str) -> ClockMhz:
        nvml, handle, path = self.nvml, self.handle, f"clocks_mhz.{name}"
        return ClockMhz(
            now=self.take(f"{path}.now", lambda: nvml.clock_mhz(handle, name)),
            max=self.take(f"{path}.max", lambda: nvml.max_clock_mhz(handle, name)),
            application=self.take(f"{path}.application", lambda: nvml.application_clock_mhz(handle, name)),
            boost=self.take(f"{path}.boost", lambda: nvml.boost_clock_mhz(handle, name)),
        )

    def throttle(self) -> Throttle:
        paths = [f"{self.path}throttle.{name}" for name in ("mask", "reasons")]
        mask = self.notes.take(paths, lambda: self.nvml.throttle_mask(self.handle))
        return Throttle() if mask is None else Throttle(mask=mask, reasons=throttle_reasons(mask))

    def violations(self) -> dict[str, int] | None:
        asks = {policy: _bound(self.nvml.violation_ns, self.handle, policy) for policy in VIOLATIONS}
        return self.notes.gather(f"{self.path}violation_ns", asks) or None

    def power(self) -> PowerW:
        names = ("draw", "limit", "default_limit", "enforced_limit")
        told = {
            name: self.take(f"power_w.{name}", _bound(self.nvml.power_w, self.handle, name)) for name in names
        }
        told |= self.take_parts("power_w", ("min", "max"), lambda: self.nvml.power_range_w(self.handle))
        return PowerW(**told)

    def temperature(self) -> TemperatureC:
        nvml, handle = self.nvml, self.handle
        return TemperatureC(
            gpu=self.take("temperature_c.gpu", lambda: nvml.temperature_c(handle)),
            memory=self.take("temperature_c.memory", lambda: nvml.memory_temperature_c(handle)),
            slowdown=self.take(
                "temperature_c.slowdown", lambda: nvml.temperature_threshold_c(handle, "slowdown")
            ),
            shutdown=self.take(
                "temperature_c.shutdown", lambda: nvml.temperature_threshold_c(handle, "shutdown")
            ),
            margin=self.take("temperature_c.margin", lambda: nvml.temperature_margin_c(handle)),
        )

    def pcie(self) -> Pcie:
        names = ("gen_now", "gen_max", "gen_max_device", "width_now", "width_max")
        told = {name: self.take(f"pcie.{name}", _bound(self.nvml.pcie, self.handle, name)) for name in names}
        replays = self.take("pcie.replay_counter", lambda: self.nvml.pcie_replays(self.handle))
        return msgspec.structs.replace(Pcie(replay_counter=replays), **told)

    def memory(self) -> MemoryMib:
        names = ("total", "used", "free")
        told = self.notes.take(
            [f"{self.path}memory_mib.{name}" for name in names], lambda: self.nvml.memory_mib(self.handle)
        )
        return MemoryMib() if told is None else MemoryMib(**told)

    def utilization(self) -> UtilizationPercent:
        ask = lambda: self.nvml.utilization_percent(self.handle)  # noqa: E731
        return UtilizationPercent(**self.take_parts("utilization_percent", ("gpu", "memory"), ask))

    def ecc(self) -> Ecc:
        mode = self.take_parts("ecc", ("mode", "mode_pending"), lambda: self.nvml.ecc_mode(self.handle))
        counts = {
            f"{what}_{since}": self.take(
                f"ecc.{what}_{since}", _bound(self.nvml.ecc_errors, self.handle, what, since)
            )
            for what in ("corrected", "uncorrected")
            for since in ("volatile", "aggregate")
        }
        return msgspec.structs.replace(Ecc(**mode), **counts)

    def remapped_rows(self) -> RemappedRows:
        names = ("correctable", "uncorrectable", "pending", "failure")
        told = self.notes.take(
            [f"{self.path}remapped_rows.{name}" for name in names],
            lambda: self.nvml.remapped_rows(self.handle),
        )
        if told is None:
            return RemappedRows()
        return RemappedRows(correctable=told[0], uncorrectable=told[1], pending=told[2], failure=told[3])

    def retired_pages(self) -> RetiredPages:
        nvml, handle = self.nvml, self.handle
        return RetiredPages(
            single_bit=self.take(
                "retired_pages.single_bit", lambda: nvml.retired_pages(handle, "single_bit")
            ),
            double_bit=self.take(
                "retired_pages.double_bit", lambda: nvml.retired_pages(handle, "double_bit")
            ),
            pending=self.take("retired_pages.pending", lambda: nvml.retired_pages_pending(handle)),
        )

    def mig(self) -> Mig:
        return Mig(
            **self.take_parts("mig", ("mode", "mode_pending"), lambda: self.nvml.mig_mode(self.handle))
        )

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Give the processes; one that computes and draws is listed under both kinds, as NVML does."""
        asks = {kind: _bound(self.nvml.processes, self.handle, kind) for kind in PROCESS_KINDS}
        told = self.notes.gather(f"{self.path}processes", asks)
        if not told:
            return None
        return tuple(
            GpuProcess(pid=pid, kind=kind, name=self.process_name(pid), memory_mib=memory_mib)
            for kind, found in told.items()
            for pid, memory_mib in found
        )

    def process_name(self, pid: int) -> str | None:
        """Give a name where there is one: a process may have ended since, which is no fact of the GPU."""
        try:
            return self.nvml.process_name(pid)
        except NotReadError:
            return None

    def nvlinks(self) -> tuple[NvLink, ...] | None:
        """Give the NVLink ports up to the last that answered; an empty tuple for a card that has none."""
        links: list[NvLink] = []
        reasons: dict[int, str] = {}
        for link in range(_NVLINKS_AT_MOST):
            try:
                active = self.nvml.nvlink_active(self.handle, link)
            except NotReadError as error:
                if error.reason in ("NOT_SUPPORTED", "INVALID_ARGUMENT"):
                    break  # a card without NVLink, or the number after the last one
                reasons[link] = error.reason
                links.append(NvLink(link=link))
                if error.reason in (LOST, "FUNCTION_NOT_FOUND"):
                    break
                continue
            links.append(self.nvlink(link) if active else NvLink(link=link, active=False))
        self.notes.lost = self.notes.lost or LOST in reasons.values()
        if links and len(reasons) == len(links):
            self.notes.missing[f"{self.path}nvlinks"] = reasons[0]
            return None
        if len(links) == _NVLINKS_AT_MOST:
            while links[-1].active is None:  # no end was told: these are no ports
                del reasons[links.pop().link]
        self.notes.missing |= {f"{self.path}nvlinks[{n}].active": reason for n, reason in reasons.items()}
        return tuple(links)

    def nvlink(self, link: int) -> NvLink:
        nvml, handle, path = self.nvml, self.handle, f"nvlinks[{link}]"
        errors = {name: _bound(nvml.nvlink_errors, handle, link, name) for name in NVLINK_ERRORS}
        return NvLink(
            link=link,
            active=True,
            version=self.take(f"{path}.version", lambda: nvml.nvlink_version(handle, link)),
            remote_pci_address=self.take(
                f"{path}.remote_pci_address", lambda: nvml.nvlink_remote_address(handle, link)
            ),
            remote_kind=self.take(f"{path}.remote_kind", lambda: nvml.nvlink_remote_kind(handle, link)),
            errors=self.notes.gather(f"{self.path}{path}.errors", errors),
        )


def _bound(ask: Callable[..., T], *args: object) -> Callable[[], T]:
    return lambda: ask(*args)
