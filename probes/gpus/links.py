"""PCIe link, NVLinks and NVSwitch fabric of a GPU as NVML reports them."""

import msgspec

from gputopo.probes.facts import FactReader
from gputopo.probes.nvml.door import LOST, NotReadError
from gputopo.probes.nvml.words import NVLINK_ERRORS
from gputopo.values.machine import Fabric, NvLink, Pcie
from gputopo.values.subject import item, within

_MAX_NVLINKS = 64  # NVML_NVLINK_MAX_LINKS is 36 in the newest header


def pcie(gpu: FactReader) -> Pcie:
    """Read generations, widths and replays; slots and bridges come from the PCI tree."""
    names = ("gen_now", "gen_max", "gen_max_device", "width_now", "width_max")
    link = gpu.read_each("pcie", names, gpu.nvml.pcie)
    replays = gpu.read("pcie.replay_counter", gpu.nvml.pcie_replays)
    rollovers = gpu.read("pcie.replay_rollovers", gpu.nvml.pcie_replay_rollovers)
    return msgspec.structs.replace(Pcie(replay_counter=replays, replay_rollovers=rollovers), **link)


def nvlinks(gpu: FactReader) -> tuple[NvLink, ...] | None:
    """Read the NVLink ports, as many as NVML counts, else up to the last that answered; () for none.

    Some drivers report links after the last one as down instead of as none.
    """
    links: list[NvLink] = []
    reasons: dict[int, str] = {}
    for link in range(_count(gpu)):
        try:
            active = gpu.nvml.nvlink_active(gpu.handles[0], link)
        except NotReadError as error:
            if error.reason in ("NOT_SUPPORTED", "INVALID_ARGUMENT"):
                break  # a GPU without NVLink, or the number after the last one
            reasons[link] = error.reason
            links.append(NvLink(link=link))
            if error.reason in (LOST, "FUNCTION_NOT_FOUND"):
                break
            continue
        links.append(_nvlink(gpu, link) if active else NvLink(link=link, active=False))
    if LOST in reasons.values():
        gpu.no_answer = LOST
    if links and len(reasons) == len(links):
        gpu.note(reasons[0], "nvlinks")
        return None
    if len(links) == _MAX_NVLINKS:
        while links[-1].active is None:  # no end was reported: these are no ports
            del reasons[links.pop().link]
    for number, reason in reasons.items():
        gpu.note(reason, item("nvlinks", number, "active"))
    return tuple(links)


def _count(gpu: FactReader) -> int:
    try:
        return min(gpu.nvml.nvlink_count(gpu.handles[0]), _MAX_NVLINKS)
    except NotReadError:
        return _MAX_NVLINKS


def fabric(gpu: FactReader) -> Fabric:
    """Read the state of the NVSwitch fabric; most GPUs have none."""
    nvml = gpu.nvml
    info = gpu.read(("fabric.state", "fabric.status", "fabric.health"), nvml.fabric_info)
    if info is None:
        return Fabric()
    return Fabric(
        state=gpu.read("fabric.state", lambda _: nvml.fabric_state(info)),
        status=gpu.read("fabric.status", lambda _: nvml.fabric_status(info)),
        health=gpu.read("fabric.health", lambda _: nvml.fabric_health(info)),
    )


def _nvlink(gpu: FactReader, link: int) -> NvLink:
    nvml, path = gpu.nvml, item("nvlinks", link)
    version = gpu.read(within(path, "version"), nvml.nvlink_version, link)
    fields = _fields(gpu, link, version)
    speed = fields.pop("speed")
    if isinstance(speed, NotReadError):
        gpu.note(speed.reason, within(path, "gb_per_s"))
    return NvLink(
        link=link,
        active=True,
        version=version,
        gb_per_s=None if isinstance(speed, NotReadError) else speed / 1000,
        remote_pci_address=gpu.read(within(path, "remote_pci_address"), nvml.nvlink_remote_address, link),
        remote_kind=gpu.read(within(path, "remote_kind"), nvml.nvlink_remote_kind, link),
        errors=_errors(gpu, link, fields),
    )


def _fields(gpu: FactReader, link: int, generation: int | None) -> dict[str, int | NotReadError]:
    try:
        return gpu.nvml.nvlink_fields(gpu.handles[0], link, generation)
    except NotReadError as error:
        return {"speed": error}


def _errors(gpu: FactReader, link: int, fields: dict[str, int | NotReadError]) -> dict[str, int]:
    """Read the error counters of a link: the four old ones, and those that are field values only.

    GPUs since Hopper refuse more and more of the old counters and have others. A refused old counter is
    missing only where no field has the same.
    """
    fact = item("nvlinks", link, "errors")
    counters = gpu.gather(fact, NVLINK_ERRORS, gpu.nvml.nvlink_errors, link)
    whole = {"crc"} if {"crc_flit", "crc_data"} & counters.keys() else set()  # the same errors, together
    for name, count in fields.items():
        if not isinstance(count, NotReadError) and name not in counters.keys() | whole:
            counters[name] = count
            gpu.found(within(fact, name))
    if counters:
        gpu.found(fact)
    return counters
