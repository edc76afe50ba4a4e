"""Past measurements between hosts: `gputopo.bandwidth/1` documents by the names of the hosts."""

from collections.abc import Collection
from pathlib import Path

import msgspec

from gputopo.runs.history.bandwidths import Saved
from gputopo.runs.history.file import damaged, exists, is_empty, opened
from gputopo.values import schema
from gputopo.values.bandwidth import NETWORK, Bandwidth, host_of
from gputopo.values.machine import Machine

_KEY = "network"  # in the place of a machine's fingerprint; where its GPUs are listed, the hosts are
_NO_MACHINE = Machine(source="live")


def save_network(path: Path, bandwidth: Bandwidth, *, saved_at: float) -> None:
    """Save what was measured between hosts. Raises InputError where it cannot be written."""
    hosts = msgspec.json.encode(sorted(hosts_of(bandwidth))).decode()
    row = (_KEY, saved_at, hosts, schema.encode(bandwidth), schema.encode(_NO_MACHINE))
    with opened(path, write=True) as connection:
        connection.execute(
            "INSERT INTO bandwidth (fingerprint, saved_at, gpus, document, machine) VALUES (?, ?, ?, ?, ?)",
            row,
        )


def latest_network(path: Path, hosts: Collection[str]) -> Saved | None:
    """Return the last saved measurement between all of these hosts, and perhaps others; None without one.

    Raises InputError for a file that cannot be read.
    """
    if not exists(path):
        return None
    with opened(path, write=False) as connection:
        if is_empty(connection):
            return None
        rows = connection.execute(
            "SELECT gpus, document, saved_at FROM bandwidth WHERE fingerprint = ? ORDER BY id DESC", (_KEY,)
        )
        for names, document, saved_at in rows:
            try:
                measured = set(msgspec.json.decode(names, type=list[str]))
            except msgspec.DecodeError as error:
                raise damaged(path, str(error)) from error
            if measured >= set(hosts):
                found = schema.decode(document, Bandwidth, origin=str(path))
                return Saved(bandwidth=found, machine=_NO_MACHINE, saved_at=saved_at)
    return None


def hosts_of(bandwidth: Bandwidth) -> set[str]:
    """Return the hosts between which something was measured."""
    places = (
        place for one in bandwidth.samples if one.kind in NETWORK for place in (one.source, one.destination)
    )
    return {host for place in places if (host := host_of(place)) is not None}
