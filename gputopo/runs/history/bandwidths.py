"""Past bandwidths of this box: `gputopo.bandwidth/1` documents by machine."""

from collections.abc import Collection
from pathlib import Path

import msgspec

from gputopo.copies.physics import checked
from gputopo.runs.history.file import damaged, date_in_words, exists, is_empty, opened
from gputopo.runs.history.identity import answering, fingerprint, is_same_but_gpus
from gputopo.topology.identities import without_identities
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth, gpu_of
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A bandwidth of the history, and the machine as it was then, without identities and bandwidth.

    `saved_at`: seconds since the epoch.
    """

    bandwidth: Bandwidth
    machine: Machine
    saved_at: float

    @property
    def date(self) -> str:
        """When it was measured, or saved where a capture does not report that: `2026-11-20 16:02 UTC`."""
        measured = self.bandwidth.measured_at
        if measured is not None:
            return date_in_words(measured)
        return f"an unknown date (saved {date_in_words(self.saved_at)})"


def save(path: Path, machine: Machine, bandwidth: Bandwidth, *, saved_at: float) -> None:
    """Save a bandwidth under its machine, both without identities.

    Raises InputError where it cannot be written; nothing is lost then.
    """
    key = fingerprint(machine)
    if key is None:
        raise InputError(
            "cannot save: the machine cannot be identified (no PCI addresses)",
            "add the machine: --from FILE of gputopo inspect --record, nvidia-smi -q or lspci",
        )
    gpus = msgspec.json.encode(sorted(_gpus_of(bandwidth))).decode()
    bare = without_identities(msgspec.structs.replace(machine, bandwidth=bandwidth))
    alone = msgspec.structs.replace(bare, bandwidth=None)
    row = (key, saved_at, gpus, schema.encode(bare.bandwidth or bandwidth), schema.encode(alone))
    with opened(path, write=True) as connection:
        connection.execute(
            "INSERT INTO bandwidth (fingerprint, saved_at, gpus, document, machine) VALUES (?, ?, ?, ?, ?)",
            row,
        )


def latest(path: Path, machine: Machine, gpus: Collection[int] | None = None) -> Saved | None:
    """Return the last saved bandwidth of a machine, None where there is none.

    Of those that were measured on all of `gpus` (None: all of the machine) the last one; where there is no
    such, the last of all. Raises InputError for a file that cannot be read.
    """
    key = fingerprint(machine)
    if key is None or not exists(path):
        return None
    wanted = {gpu.index for gpu in machine.gpus} if gpus is None else set(gpus)
    newest: int | None = None
    with opened(path, write=False) as connection:
        if is_empty(connection):
            return None
        rows = connection.execute(
            "SELECT id, gpus FROM bandwidth WHERE fingerprint = ? ORDER BY id DESC", (key,)
        )
        for number, measured in rows:
            newest = number if newest is None else newest
            if wanted <= _indices(measured, path):
                newest = number
                break
        if newest is None:
            return None
        row = connection.execute("SELECT document, machine, saved_at FROM bandwidth WHERE id = ?", (newest,))
        found = row.fetchone()
    return _saved(*found, origin=str(path))


def latest_with_other_gpus(path: Path, machine: Machine) -> Saved | None:
    """Return the last saved bandwidth of this machine with fewer GPUs or more, None where there is none.

    Of those filed under one machine the last one on all GPUs that it and this one have, else the last.
    Raises InputError for a file that cannot be read.
    """
    if not exists(path):
        return None
    with opened(path, write=False) as connection:
        if is_empty(connection):
            return None
        machines = connection.execute(
            "SELECT machine FROM bandwidth WHERE id IN (SELECT MAX(id) FROM bandwidth GROUP BY fingerprint) "
            "ORDER BY id DESC"
        )
        saved = (schema.decode(row[0], Machine, origin=str(path)) for row in machines)
        then = next((one for one in saved if is_same_but_gpus(machine, one)), None)
    if then is None:
        return None
    here = {gpu.pci_address for gpu in answering(machine)}
    return latest(path, then, {gpu.index for gpu in answering(then) if gpu.pci_address in here})


def _gpus_of(bandwidth: Bandwidth) -> set[int]:
    places = {place for sample in bandwidth.samples for place in (sample.source, sample.destination)}
    return {index for place in places if (index := gpu_of(place)) is not None}


def _indices(text: str, path: Path) -> set[int]:
    try:
        return set(msgspec.json.decode(text, type=list[int]))
    except msgspec.DecodeError as error:
        raise damaged(path, str(error)) from error


def stored(path: Path, machine: Machine) -> list[Saved]:
    """Return all saved bandwidths of a machine, oldest first. Raises InputError as `latest` does."""
    key = fingerprint(machine)
    if key is None or not exists(path):
        return []
    with opened(path, write=False) as connection:
        if is_empty(connection):
            return []
        rows = connection.execute(
            "SELECT document, machine, saved_at FROM bandwidth WHERE fingerprint = ? ORDER BY id", (key,)
        ).fetchall()
    return [_saved(*row, origin=str(path)) for row in rows]


def _saved(document: bytes, machine: bytes, saved_at: float, *, origin: str) -> Saved:
    then = schema.decode(machine, Machine, origin=origin)
    return Saved(
        bandwidth=checked(schema.decode(document, Bandwidth, origin=origin), then),
        machine=then,
        saved_at=saved_at,
    )
