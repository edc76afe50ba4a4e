"""Which devices of which hosts train together: earlier runs of the same ones say something of a run. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Together(NamedTuple):
    """The devices that train together on several hosts; empty for those of one.

    `hosts`: the name of each, and past rank 0 its address on their network. `devices`: of each the rank of
    its host, and index and model of its GPU.
    """

    hosts: tuple[tuple[str, str], ...]
    devices: tuple[tuple[int, int | None, str], ...]


def together_of(
    servers: Sequence[tuple[str, str]], devices: Sequence[tuple[int, int | None, str | None]]
) -> Together:
    """Return what trains together. `servers`: name, and address with a port; `devices`: as of Together."""
    return Together(
        tuple(
            (host, address.rpartition(":")[0] if rank else "") for rank, (host, address) in enumerate(servers)
        ),
        tuple((rank, gpu, (name or "").removeprefix("NVIDIA ")) for rank, gpu, name in devices),
    )


def together(spec: Mapping[str, Any]) -> Together:
    """Return what trained together by the JSON form of a spec."""
    servers = [one for one in spec.get("servers") or () if isinstance(one, Mapping)]
    devices = [one for one in spec.get("devices") or () if servers and isinstance(one, Mapping)]
    return together_of(
        [(str(one.get("host")), str(one.get("address"))) for one in servers],
        [(one.get("rank", 0), one.get("gpu"), one.get("gpu_name")) for one in devices],
    )
