"""Which devices of a run are compared with which, and their names."""

import re
from collections.abc import Callable, Iterable, Sequence

from gputopo.values.run.events import Device

# A device of one of several hosts, as TensorFlow names it.
_HOSTED = re.compile(r"/job:[^/]+(?:/replica:\d+)?/task:(\d+)/(?:device:)?([A-Za-z_]+):(\d+)")


def kind_of(device: Device) -> str:
    """Return what a device is compared with: "CPU", or the GPU's name.

    A CPU device that stands for a GPU in a rehearsal is a CPU device.
    """
    return "CPU" if is_cpu(device) else f"GPU {device.gpu_name or 'of unknown name'}"


def place_name(place: str, devices: Iterable[Device]) -> str:
    """Return the name of a place that TensorFlow names: "n2 GPU 3", "n2 CPU 0"; on a single host as it is.

    `devices`: of the run. A GPU has the index that it has in its host's machine, if a tower is on it.
    """
    found = _HOSTED.fullmatch(place)
    return place if found is None else _name(found, devices)


def with_names(text: str, devices: Iterable[Device]) -> str:
    """Return a text, such as an error of TensorFlow's, in which devices of several hosts have their names."""
    known = tuple(devices)
    return _HOSTED.sub(lambda found: _name(found, known), text)


def _name(found: re.Match[str], devices: Iterable[Device]) -> str:
    rank, kind, number = int(found[1]), found[2].upper(), int(found[3])
    own = [device for device in devices if device.rank == rank and device.host is not None]
    if not own:
        return found[0]
    for device in own:
        ends = device.device.upper().endswith(f"{kind}:{number}")
        if ends and kind == "GPU" and device.gpu is not None:
            return f"{device.host} {kind} {device.gpu}"
    return f"{own[0].host} {kind} {number}"


def label_of(device: Device) -> str:
    """Return what a device is called in tables and bars: "/GPU:3"; of several hosts "n2 GPU 3"."""
    return place_name(device.device, (device,))


def name_of(device: Device) -> str:
    """Return a device's name for people: "GPU 3 (GTX 1070)", "n2 GPU 3 (GTX 1070)", or "tower 1 (/CPU:1)"."""
    if device.host is None and (is_cpu(device) or device.gpu is None):
        return f"tower {device.tower} ({device.device})"
    known = device.gpu_name and not is_cpu(device)
    return f"{short_name_of(device)} ({device.gpu_name})" if known else short_name_of(device)


def short_name_of(device: Device) -> str:
    """Return "GPU 3", or "tower 1"; of several hosts "n2 GPU 3", or "n2 CPU 1"."""
    if device.host is not None:
        return label_of(device)
    return f"tower {device.tower}" if is_cpu(device) or device.gpu is None else f"GPU {device.gpu}"


def is_cpu(device: Device) -> bool:
    """Whether the device is a CPU device, also where it stands for a GPU."""
    return "CPU" in device.device.upper()


def groups(devices: Sequence[Device], key: Callable[[Device], object]) -> list[list[Device]]:
    """Return the devices that share a key, where there are two at least."""
    found: dict[object, list[Device]] = {}
    for device in devices:
        found.setdefault(key(device), []).append(device)
    return [group for group in found.values() if len(group) > 1]


def reference_of(tower: int, fastest_first: Sequence[int]) -> int:
    """Return the peer a tower is compared with: the middle one of the faster half of its peers.

    Of an even number the faster of the two. So it is the fastest of up to four peers, the second of five to
    eight: one healthy device of four shows that three are slow, but one of eight does not. With the median
    of all peers a slow majority would pass as normal; with the fastest peer one fast GPU of eight would mark
    the seven others as slow.
    """
    peers = [other for other in fastest_first if other != tower]
    faster_half = peers[: (len(peers) + 1) // 2]
    return faster_half[(len(faster_half) - 1) // 2]
