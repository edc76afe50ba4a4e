"""Removes from a machine what identifies a person, an account or a specific piece of hardware.

UUIDs and users are known by their field. Process names, lines of captures and contradictory values may have
any text: they are searched for the forms of identities.
"""

import re
from typing import Any

import msgspec

from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Contradiction, Gpu, GpuProcess, Machine, Nccl, Nic, Sample
from gputopo.values.schema import as_text, from_text

LEFT_OUT = "[left out]"

# A line or a fact with such a label is about one piece of hardware or one person, whatever its form.
_LABEL = re.compile(
    r"serial|uuid|guid|host[ _-]?(name|hash)|user[ _-]?name|\buser\b|board[ _]id|mac[ _]addr|\bgid\b",
    re.IGNORECASE,
)
_HEX4 = r"[0-9a-f]{4}"
_PATTERNS = (
    re.compile(rf"\b(?:(?:GPU|MIG|GI)-)?[0-9a-f]{{8}}-(?:{_HEX4}-){{3}}[0-9a-f]{{12}}\b", re.IGNORECASE),
    re.compile(r"(?<![0-9a-f:])(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}(?![0-9a-f:])", re.IGNORECASE),  # MAC
    re.compile(rf"(?<![0-9a-f:])(?:{_HEX4}:){{3,}}{_HEX4}(?![0-9a-f:])", re.IGNORECASE),  # InfiniBand, IPv6
    # Names that contain a MAC address or GUID: interfaces (udev), RDMA devices (rules of rdma-core).
    re.compile(
        r"(?:(?<=\b[ew]nx)|(?<=\bwlx)|(?<=\bi[bw]x)|(?<=\bopax)|(?<=\brocex))[0-9a-f]{12}(?:[0-9a-f]{4})?\b",
        re.IGNORECASE,
    ),
    # Windows: spaces belong to a name; in JSON each backslash is doubled.
    re.compile(r"(?<=/home/)[^/\s]+|(?<=/Users/)[^/\s]+|(?<=\\Users\\)\\?[^\\]+", re.IGNORECASE),
)
_IP = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")  # in texts only: it may be a version
_HOMES = ("home", "users")
_ON_WINDOWS = re.compile(r'"?(?:[a-z]:[\\/]|\\\\)', re.IGNORECASE)
_WINDOWS_PROGRAM = re.compile(r'"?(?P<path>[^"]*?\.(?:exe|com|bat|cmd))(?=["\s]|$)', re.IGNORECASE)


def scrubbed(text: str) -> str:
    """Return the text with UUIDs, MAC and InfiniBand addresses and the names of home folders replaced."""
    for pattern in _PATTERNS:
        text = pattern.sub(LEFT_OUT, text)
    return text


def scrubbed_line(text: str) -> str:
    """Return a scrubbed line of a capture; a line with the label of an identity is replaced completely."""
    return LEFT_OUT if _LABEL.search(text) else scrubbed(text)


def names_identity(fact: str) -> bool:
    """Return whether a fact is an identity, by its path: `gpus[0].uuid`."""
    return _LABEL.search(fact) is not None


def scrubbed_value(value: Any) -> Any:
    """Return a JSON value with all texts scrubbed; the value of an identity's key is replaced."""
    if isinstance(value, str):
        return scrubbed(value)
    if isinstance(value, dict):
        return {
            key: LEFT_OUT if isinstance(item, str) and names_identity(key) else scrubbed_value(item)
            for key, item in value.items()
        }
    return [scrubbed_value(item) for item in value] if isinstance(value, (list, tuple)) else value


def program_name(command: str, user: str | None = None) -> str | None:
    """Return a process's program, without folders and arguments, which identify the person.

    Returns None if nothing is left, if the program is the user's name, or if a path with spaces was cut so
    that its first part ends at a home folder (`/home/jane doe/bin/python`). On Windows a path may have
    spaces: it ends with `.exe` or the like; if its end is unclear, the result is None.
    """
    first = next(iter(command.split()), "")
    if _ON_WINDOWS.match(command):
        whole = _WINDOWS_PROGRAM.match(command)
        if whole is None and first != command.strip():
            return None
        first = first if whole is None else whole["path"]
    *folders, name = re.split(r"[\\/]+", first.strip('"'))
    if (folders and folders[-1].lower() in _HOMES) or (user is not None and name == user):
        return None
    return scrubbed(name) or None


def without_identities(machine: Machine) -> Machine:
    """Return the machine without names of hosts and users, UUIDs and program folders; texts are scrubbed."""
    replace = msgspec.structs.replace
    detail = machine.driver.detail
    return replace(
        machine,
        source=scrubbed(machine.source),
        host=replace(machine.host, name=None),
        driver=replace(machine.driver, detail=None if detail is None else scrubbed(detail)),
        gpus=tuple(_bare(gpu) for gpu in machine.gpus),
        gaps=tuple(replace(gap, text=scrubbed(gap.text)) for gap in machine.gaps),
        samples=tuple(_bare_sample(sample) for sample in machine.samples),
        nics=tuple(map(_bare_nic, machine.nics)),
        pci=tuple(
            node if node.name is None else replace(node, name=scrubbed(node.name)) for node in machine.pci
        ),
        bandwidth=msgspec.convert(
            scrubbed_value(msgspec.to_builtins(machine.bandwidth, enc_hook=as_text)),
            Bandwidth | None,
            dec_hook=from_text,
        ),
        missing={path: scrubbed(reason) for path, reason in machine.missing.items()}
        if machine.source != "live"  # all reasons are from NVML or gputopo
        else machine.missing,
        contradictions=tuple(
            replace(contradiction, said=_scrubbed_values(contradiction))
            for contradiction in machine.contradictions
        ),
        unread=tuple(
            replace(unread, source=scrubbed(unread.source), text=scrubbed_line(unread.text))
            for unread in machine.unread
        ),
        nccl=None if machine.nccl is None else _bare_nccl(machine.nccl),
        kernel_events=tuple(replace(event, text=scrubbed(event.text)) for event in machine.kernel_events),
    )


def _bare(gpu: Gpu) -> Gpu:
    processes = None if gpu.processes is None else tuple(map(_bare_process, gpu.processes))
    return msgspec.structs.replace(gpu, uuid=None, processes=processes)


def _bare_nccl(nccl: Nccl) -> Nccl:
    texts = {
        name: tuple(_IP.sub(LEFT_OUT, scrubbed_line(text)) for text in getattr(nccl, name))
        for name in ("settings", "warnings")
    }
    return msgspec.structs.replace(nccl, **texts)


def _bare_nic(nic: Nic) -> Nic:
    replace = msgspec.structs.replace
    ports = tuple(
        replace(port, rdma_device=_scrubbed(port.rdma_device), interface=_scrubbed(port.interface))
        for port in nic.ports or ()
    )
    return replace(nic, name=_scrubbed(nic.name), ports=None if nic.ports is None else ports)


def _scrubbed(text: str | None) -> str | None:
    return None if text is None else scrubbed(text)


def _bare_process(process: GpuProcess) -> GpuProcess:
    name = None if process.name is None else program_name(process.name, process.user)
    return msgspec.structs.replace(process, user=None, name=name)


def _bare_sample(sample: Sample) -> Sample:
    gpus = tuple(map(_bare_facts, sample.gpus))
    return msgspec.structs.replace(sample, source=scrubbed(sample.source), gpus=gpus)


def _bare_facts(facts: dict[str, Any]) -> dict[str, Any]:
    bare = {path: value for path, value in facts.items() if path != "uuid"}
    if "processes" in bare:
        processes = msgspec.convert(bare["processes"], tuple[GpuProcess, ...])
        bare["processes"] = [msgspec.to_builtins(_bare_process(process)) for process in processes]
    return bare


def _scrubbed_values(contradiction: Contradiction) -> dict[str, str]:
    return {
        scrubbed(source): LEFT_OUT if names_identity(contradiction.fact) else scrubbed(words)
        for source, words in contradiction.said.items()
    }
