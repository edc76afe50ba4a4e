"""A GPU's PCIe link, NVLinks and NVSwitches as NVML tells them."""

import msgspec

from gputopo.probes.gpus.notes import Asker, Notes, bound
from gputopo.probes.nvml.door import LOST, NotReadError
from gputopo.probes.nvml.words import NVLINK_ERRORS
from gputopo.values.machine import Fabric, NvLink, Pcie

_NVLINKS_AT_MOST = 64  # NVML_NVLINK_MAX_LINKS is 36 in the newest header


def pcie(gpu: Asker) -> Pcie:
    """Give generations, widths and replays; slots and bridges are told by the PCI tree."""
    names = ("gen_now", "gen_max", "gen_max_device", "width_now", "width_max")
    told = gpu.take_each("pcie", names, gpu.nvml.pcie)
    replays = gpu.take("pcie.replay_counter", gpu.nvml.pcie_replays)
    return msgspec.structs.replace(Pcie(replay_counter=replays), **told)


def nvlinks(gpu: Asker) -> tuple[NvLink, ...] | None:
    """Give the NVLink ports up to the last that answered; an empty tuple for a card that has none."""
    links: list[NvLink] = []
    reasons: dict[int, str] = {}
    for link in range(_NVLINKS_AT_MOST):
        try:
            active = gpu.nvml.nvlink_active(gpu.handle, link)
        except NotReadError as error:
            if error.reason in ("NOT_SUPPORTED", "INVALID_ARGUMENT"):
                break  # a card without NVLink, or the number after the last one
            reasons[link] = error.reason
            links.append(NvLink(link=link))
            if error.reason in (LOST, "FUNCTION_NOT_FOUND"):
                break
            continue
        links.append(_nvlink(gpu, link) if active else NvLink(link=link, active=False))
    gpu.notes.lost = gpu.notes.lost or LOST in reasons.values()
    if links and len(reasons) == len(links):
        gpu.notes.missing[f"{gpu.path}nvlinks"] = reasons[0]
        return None
    if len(links) == _NVLINKS_AT_MOST:
        while links[-1].active is None:  # no end was told: these are no ports
            del reasons[links.pop().link]
    gpu.notes.missing |= {f"{gpu.path}nvlinks[{n}].active": reason for n, reason in reasons.items()}
    return tuple(links)


def fabric(gpu: Asker) -> Fabric:
    """Give how the GPU stands with its NVSwitches; most GPUs have none."""
    take, nvml = gpu.notes.take, gpu.nvml
    state, status, health = (f"{gpu.path}fabric.{name}" for name in ("state", "status", "health"))
    info = take((state, status, health), nvml.fabric_info, gpu.handle)
    if info is None:
        return Fabric()
    return Fabric(
        state=take(state, nvml.fabric_state, info),
        status=take(status, nvml.fabric_status, info),
        health=take(health, nvml.fabric_health, info),
    )


def _nvlink(gpu: Asker, link: int) -> NvLink:
    nvml, path = gpu.nvml, f"nvlinks[{link}]"
    version = gpu.take(f"{path}.version", nvml.nvlink_version, link)
    fields = _fields(gpu, link, version)
    speed = fields.pop("speed")
    if isinstance(speed, NotReadError):
        gpu.notes.note(f"{gpu.path}{path}.gb_per_s", speed)
    return NvLink(
        link=link,
        active=True,
        version=version,
        gb_per_s=None if isinstance(speed, NotReadError) else speed / 1000,
        remote_pci_address=gpu.take(f"{path}.remote_pci_address", nvml.nvlink_remote_address, link),
        remote_kind=gpu.take(f"{path}.remote_kind", nvml.nvlink_remote_kind, link),
        errors=_errors(gpu, link, fields),
    )


def _fields(gpu: Asker, link: int, generation: int | None) -> dict[str, int | NotReadError]:
    try:
        return gpu.nvml.nvlink_fields(gpu.handle, link, generation)
    except NotReadError as error:
        return {"speed": error}


def _errors(gpu: Asker, link: int, fields: dict[str, int | NotReadError]) -> dict[str, int]:
    """Give the error counters of a link: the four old ones, and what only field values tell.

    Cards since Hopper refuse old counters one after the other and tell others. A refused old counter is
    missing only where no field has the same.
    """
    notes, asks = Notes(), {}
    for name in NVLINK_ERRORS:
        asks[name] = bound(gpu.nvml.nvlink_errors, gpu.handle, link, name)
    path = f"{gpu.path}nvlinks[{link}].errors"
    counters = notes.gather(path, asks)
    whole = {"crc"} if {"crc_flit", "crc_data"} & counters.keys() else set()  # the same errors, together
    for name, told in fields.items():
        if not isinstance(told, NotReadError) and name not in counters.keys() | whole:
            counters[name] = told
            notes.missing.pop(f"{path}.{name}", None)
    if counters:
        notes.missing.pop(path, None)
    gpu.notes.lost = gpu.notes.lost or notes.lost
    gpu.notes.missing |= notes.missing
    return counters
