"""The history of this box: past bandwidths and results of runs by machine, in one SQLite file.

The file is `history.sqlite` in `$GPUTOPO_HOME`, else in the user's data folder (`platformdirs`). A machine is
known by its fingerprint: a hash over facts that stay while no hardware changes, without identities. What was
measured between hosts is known by their names.
"""

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gputopo.copies.physics import checked
from gputopo.topology.identities import without_identities
from gputopo.values import schema
from gputopo.values.bandwidth import NETWORK, Bandwidth
from gputopo.values.errors import InputError
from gputopo.values.install import UPDATE_GPUTOPO
from gputopo.values.machine import Gpu, Host, Machine
from gputopo.values.run.result import Result
from gputopo.values.words import date_in_words

if TYPE_CHECKING:
    import sqlite3


# Facts of a host that stay when only its GPUs change. Memory: the kernel's share differs.
_SAME_HOST = ("cpu_model", "sockets", "physical_cores", "virtual_machine")
_SAME_MEMORY = 0.05


def fingerprint(machine: Machine) -> str | None:
    """Return the hash (SHA-256, hex) that identifies a machine, None where too little is known of it.

    Over the CPU's model and each GPU's PCI address and name: a GPU that is moved or replaced makes another
    machine, a driver that prefixes the name with "NVIDIA" (from 465 on) does not. No serial numbers,
    UUIDs or host names. None: a GPU whose PCI address is unknown, or neither GPUs nor a CPU model.
    """
    if any(gpu.pci_address is None for gpu in machine.gpus):
        return None
    if not machine.gpus and machine.host.cpu_model is None:
        return None
    gpus = sorted([gpu.pci_address or "", _model(gpu)] for gpu in machine.gpus)
    facts = msgspec.json.encode([machine.host.cpu_model or "", gpus])
    return hashlib.sha256(facts).hexdigest()


def is_same_but_gpus(now: Machine, then: Machine) -> bool:
    """Return whether two machines, by the facts known of both, are one that lost GPUs or got more.

    The host is the same, GPUs in the same slots are of the same model, and only one of the two has others
    beside them. A GPU that does not answer is as one that is not there. With some gone and others new, it is
    taken for another machine.
    """
    if now.host.cpu_model is None or not _same_host(now.host, then.host):
        return False
    here, there = ({gpu.pci_address: _model(gpu) for gpu in answering(one)} for one in (now, then))
    shared = here.keys() & there.keys()
    return (
        bool(shared)
        and len(shared) in (len(here), len(there))
        and all(here[at] == there[at] for at in shared)
    )


def answering(machine: Machine) -> list[Gpu]:
    """Return the GPUs that respond and whose slot is known: those that can be measured again."""
    return [gpu for gpu in machine.gpus if not gpu.lost and gpu.pci_address is not None]


def _model(gpu: Gpu) -> str:
    return (gpu.name or "").removeprefix("NVIDIA ")


def _same_host(now: Host, then: Host) -> bool:
    facts = [(getattr(now, name), getattr(then, name)) for name in _SAME_HOST]
    memory = (now.memory_mib or 0, then.memory_mib or 0)
    return all(None in both or both[0] == both[1] for both in facts) and (
        0 in memory or abs(memory[0] - memory[1]) <= _SAME_MEMORY * max(memory)
    )


FILE = "history.sqlite"
WAIT_S = 10.0  # for another writer, which needs milliseconds
_VERSION = 2  # of the tables, in SQLite's user_version; 1 had no results

_TABLES = (
    "CREATE TABLE IF NOT EXISTS bandwidth (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL, "
    "saved_at REAL NOT NULL, gpus TEXT NOT NULL, document BLOB NOT NULL, machine BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS bandwidth_of_machine ON bandwidth (fingerprint, id)",
    "CREATE TABLE IF NOT EXISTS result (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL, "
    "finished_at REAL NOT NULL, folder TEXT NOT NULL, model TEXT NOT NULL, document BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS result_of_machine ON result (fingerprint, finished_at)",
)


def history_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the history, whether it exists or not."""
    home = environ.get("GPUTOPO_HOME")
    if home:
        return Path(home) / FILE
    import platformdirs

    return Path(platformdirs.user_data_dir("gputopo")) / FILE


@contextlib.contextmanager
def opened(path: Path, *, write: bool) -> "Iterator[sqlite3.Connection]":
    """Open the history for one transaction. Raises InputError in place of SQLite's errors."""
    import sqlite3

    try:
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            # Reading may have to undo what a killed writer left, so it is opened for writing too.
            f"{path.absolute().as_uri()}?mode={'rwc' if write else 'rw'}",
            uri=True,
            timeout=WAIT_S,
            isolation_level=None,
        )
        with contextlib.closing(connection):
            _check_version(connection, path)
            if write:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                for statement in (*_TABLES, f"PRAGMA user_version = {_VERSION}") if write else ():
                    connection.execute(statement)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror}", "set GPUTOPO_HOME to a folder that you may write to"
        ) from error
    except sqlite3.Error as error:
        raise _unusable(path, error, write=write) from error


@contextlib.contextmanager
def _read(path: Path, table: str) -> "Iterator[sqlite3.Connection | None]":
    """Open the history to read a table; None where nothing was saved in it, or there is no history."""
    try:
        is_there = path.exists()
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", "set GPUTOPO_HOME to a folder that you may write to"
        ) from error
    if not is_there:
        yield None
        return
    with opened(path, write=False) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        yield connection if (table,) in names else None


def _check_version(connection: "sqlite3.Connection", path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise InputError(
            f"{path} was written by a later version of gputopo",
            f"{UPDATE_GPUTOPO}; or set GPUTOPO_HOME to another folder",
        )


def _unusable(path: Path, error: "sqlite3.Error", *, write: bool) -> InputError:
    import sqlite3

    # The primary code is in the low byte (sqlite.org/rescode.html).
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return damaged(path, str(error))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return InputError(f"{path} is in use by another program", "try again when it is done")
    if code == sqlite3.SQLITE_FULL:
        return InputError(
            f"cannot write {path}: no space left", "free some space, or set GPUTOPO_HOME to another folder"
        )
    verb = "write" if write else "read"
    return InputError(f"cannot {verb} {path}: {error}", "set GPUTOPO_HOME to a folder that you may write to")


def damaged(path: Path, why: str) -> InputError:
    """Return the error for a file whose content is no history."""
    return InputError(
        f"{path} is damaged: {why}",
        f"move it away (mv {path.name} {path.name}.old, in its folder); a new one is then created",
    )


_NETWORK_KEY = "network"  # in the place of a fingerprint; where GPUs are listed, the hosts are
_NO_MACHINE = Machine(source="live")


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A bandwidth of the history, and the machine as it was then, without identities and bandwidth."""

    bandwidth: Bandwidth
    machine: Machine
    saved_at: float  # seconds since the epoch

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
    bare = without_identities(msgspec.structs.replace(machine, bandwidth=bandwidth))
    alone = msgspec.structs.replace(bare, bandwidth=None)
    gpus = {gpu for one in bandwidth.samples for gpu in one.gpu_ends if gpu is not None}
    _insert(path, key, saved_at, gpus, bare.bandwidth or bandwidth, alone)


def save_network(path: Path, bandwidth: Bandwidth, *, saved_at: float) -> None:
    """Save what was measured between hosts. Raises InputError where it cannot be written."""
    _insert(path, _NETWORK_KEY, saved_at, hosts_of(bandwidth), bandwidth, _NO_MACHINE)


def _insert(
    path: Path,
    key: str,
    saved_at: float,
    measured: Iterable[int] | Iterable[str],
    bandwidth: Bandwidth,
    machine: Machine,
) -> None:
    places = msgspec.json.encode(sorted(measured)).decode()
    row = (key, saved_at, places, schema.encode(bandwidth), schema.encode(machine))
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
    wanted = {gpu.index for gpu in machine.gpus} if gpus is None else set(gpus)
    return None if key is None else _latest(path, key, wanted, list[int], any_else=True)


def latest_network(path: Path, hosts: Collection[str]) -> Saved | None:
    """Return the last saved measurement between all of these hosts, and perhaps others; None without one.

    Raises InputError for a file that cannot be read.
    """
    return _latest(path, _NETWORK_KEY, set(hosts), list[str], any_else=False)


def _latest(
    path: Path, key: str, wanted: Collection[int] | Collection[str], kind: type, *, any_else: bool
) -> Saved | None:
    """Return the last one saved by a key that was measured on all that is wanted, else the last of all."""
    newest: int | None = None
    with _read(path, "bandwidth") as connection:
        if connection is None:
            return None
        rows = connection.execute(
            "SELECT id, gpus FROM bandwidth WHERE fingerprint = ? ORDER BY id DESC", (key,)
        )
        for number, measured in rows:
            newest = number if newest is None and any_else else newest
            try:
                fits = set(wanted) <= set(msgspec.json.decode(measured, type=kind))
            except msgspec.DecodeError as error:
                raise damaged(path, str(error)) from error
            if fits:
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
    with _read(path, "bandwidth") as connection:
        if connection is None:
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


def stored_bandwidths(path: Path, machine: Machine) -> list[Saved]:
    """Return all saved bandwidths of a machine, oldest first. Raises InputError as `latest` does."""
    with _read(path, "bandwidth") as connection:
        if connection is None:
            return []
        rows = connection.execute(
            "SELECT document, machine, saved_at FROM bandwidth WHERE fingerprint = ? ORDER BY id",
            (fingerprint(machine),),
        ).fetchall()
    return [_saved(*row, origin=str(path)) for row in rows]


def _saved(document: bytes, machine: bytes, saved_at: float, *, origin: str) -> Saved:
    then = schema.decode(machine, Machine, origin=origin)
    return Saved(
        bandwidth=checked(schema.decode(document, Bandwidth, origin=origin), then),
        machine=then,
        saved_at=saved_at,
    )


def hosts_of(bandwidth: Bandwidth) -> set[str]:
    """Return the hosts between which something was measured."""
    ends = (end for one in bandwidth.samples if one.kind in NETWORK for end in one.ends)
    return {end.host for end in ends if end.host is not None}


class StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result of the history."""

    result: Result
    finished_at: float  # seconds since the epoch
    folder: str  # of its run, perhaps gone
    fingerprint: str  # of the machine that it ran on


def save_result(path: Path, machine: Machine, result: Result, *, folder: str, finished_at: float) -> bool:
    """Add a result; return whether the machine can be identified, so that it was added.

    Raises InputError where the file cannot be written; nothing is lost then.
    """
    key = fingerprint(machine)
    if key is None:
        return False
    model = str(result.spec.get("model", ""))
    row = (key, finished_at, folder, model, schema.encode(result))
    with opened(path, write=True) as connection:
        connection.execute(
            "INSERT INTO result (fingerprint, finished_at, folder, model, document) VALUES (?, ?, ?, ?, ?)",
            row,
        )
    return True


def stored_results(
    path: Path, *, machine: str | None = None, model: str | None = None, since: float | None = None
) -> Iterator[StoredResult]:
    """Iterate over results, oldest first. `machine`: a fingerprint; None: of any machine, model or time.

    Raises InputError for a file that cannot be read.
    """
    with _read(path, "result") as connection:
        if connection is None:
            return
        wanted = {"fingerprint = ?": machine, "model = ?": model, "finished_at >= ?": since}
        asked = {condition: value for condition, value in wanted.items() if value is not None}
        where = f" WHERE {' AND '.join(asked)}" if asked else ""
        rows = connection.execute(
            f"SELECT document, finished_at, folder, fingerprint FROM result{where} ORDER BY finished_at, id",
            tuple(asked.values()),
        )
        for document, finished_at, folder, key in rows:
            result = schema.decode(document, Result, origin=str(path))
            yield StoredResult(result=result, finished_at=finished_at, folder=folder, fingerprint=key)
