"""What the samples of a run show of its hardware, by host. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gputopo.runs.hardware.checks import CHECKS
from gputopo.runs.hardware.judge import judge_hardware, worst_first
from gputopo.runs.hardware.record import HardwareRecord
from gputopo.values.run.events import Device, Sample
from gputopo.values.run.verdict import (
    AS_PLANNED,
    FAULTY,
    NOT_CHECKED,
    NOT_JUDGED,
    NOT_SEEN,
    OUTSIDE,
    SOUND,
    Hardware,
    HardwareFault,
    Placed,
)

_WORST_FIRST = (OUTSIDE, NOT_SEEN, NOT_CHECKED, AS_PLANNED)


class HostRecords:
    """A record of each host of a run. `spec`: the run's, which names its hosts where there are several.

    GPUs are compared with those of their own host: samples of two hosts are not of the same time.
    """

    def __init__(self, devices: Sequence[Device], spec: Mapping[str, Any]) -> None:
        servers = spec.get("servers")
        self._hosts = [str(one.get("host")) for one in servers] if isinstance(servers, list) else []
        self._records = [
            HardwareRecord([one for one in devices if one.rank == rank])
            for rank in range(max(1, len(self._hosts)))
        ]

    def add(self, sample: Sample) -> None:
        """Add the next sample, of any host."""
        if sample.rank < len(self._records):
            self._records[sample.rank].add(sample)

    def judge(self) -> Hardware:
        """Return what the samples so far show, errors first."""
        found = [judge_hardware(one) for one in self._records]
        if len(found) == 1:
            return found[0]
        by_host = list(zip(self._hosts, found, strict=True))
        words = {one.word for one in found}
        checked = {name for one in found for name in one.checked}
        return Hardware(
            word=next((one for one in (FAULTY, NOT_JUDGED) if one in words), SOUND),
            says="; ".join(f"{host}: {one.says}" for host, one in by_host),
            faults=worst_first(
                _of_host(fault, host, rank)
                for rank, (host, one) in enumerate(by_host)
                for fault in one.faults
            ),
            samples=sum(one.samples for one in found),
            loaded=min(one.loaded for one in found),
            checked=tuple(check.id for check in CHECKS if check.id in checked),
            not_checked={
                name: f"{host}: {why}"
                for host, one in by_host
                for name, why in one.not_checked.items()
                if name not in checked
            },
        )

    def placed(self) -> Placed:
        """Return where the program was seen so far: of several hosts the worst."""
        found = [one.placement.placed() for one in self._records]
        if len(found) == 1:
            return found[0]
        worst = min(found, key=lambda one: _WORST_FIRST.index(one.word)).word
        named = [(host, one) for host, one in zip(self._hosts, found, strict=True) if one.word == worst]
        return Placed(
            word=worst,
            says="; ".join(f"{host}: {one.says}" for host, one in named),
            by_host={host: one.gpus for host, one in zip(self._hosts, found, strict=True) if one.gpus},
        )

    def news(self) -> str | None:
        """Return what a user wants to read at once of this host, each kind once; others report theirs."""
        return self._records[0].placement.news()


def _of_host(fault: HardwareFault, host: str, rank: int) -> HardwareFault:
    """Return a fault with its host: `n2 GPU 3: ...`, and `host n2: ...`."""
    says = fault.says
    if fault.gpu is None and says.startswith("host: "):
        says = f"host {host}: {says.removeprefix('host: ')}"
    else:
        says = f"{host} {says}"
    return msgspec.structs.replace(fault, says=says, rank=rank, host=host)
