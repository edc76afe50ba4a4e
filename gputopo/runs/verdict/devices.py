"""Which devices of a run are compared with which, and their names."""

from collections.abc import Callable, Sequence

from gputopo.values.run.events import Device


def kind_of(device: Device) -> str:
    """Return what a device is compared with: "CPU", or the GPU's name.

    A CPU device that stands for a GPU in a rehearsal is a CPU device.
    """
    return "CPU" if is_cpu(device) else f"GPU {device.gpu_name or 'of unknown name'}"


def name_of(device: Device) -> str:
    """Return a device's name for people: "GPU 3 (GTX 1070)", or "tower 1 (/CPU:1)"."""
    if is_cpu(device) or device.gpu is None:
        return f"tower {device.tower} ({device.device})"
    return f"GPU {device.gpu} ({device.gpu_name})" if device.gpu_name else f"GPU {device.gpu}"


def short_name_of(device: Device) -> str:
    """Return "GPU 3", or "tower 1"."""
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
