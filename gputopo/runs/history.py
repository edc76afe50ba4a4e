"""The history of this box: earlier runs and saved bandwidths by machine, in one SQLite file.

The file is `history.sqlite` in gputopo's data folder: `$GPUTOPO_HOME`, else the user's data folder
(`platformdirs`). The next query (`past`) adds the runs from their folders there, so a lost file is rebuilt.
Only saved bandwidths, and runs whose folders are elsewhere or deleted, exist nowhere else. Machines are
identified by their fingerprints (`topology.same_machine`), networks by the names of their hosts.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gputopo.copies.physics import checked
from gputopo.topology import answering_gpus, fingerprint, is_same_but_gpus, without_identities
from gputopo.values import schema
from gputopo.values.bandwidth import NETWORK, Bandwidth
from gputopo.values.errors import InputError
from gputopo.values.install import UPDATE_GPUTOPO
from gputopo.values.machine import Machine
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import AUTOTUNE_RUNS, FOLDER, SCREEN_RUNS
from gputopo.values.words import date_in_words

if TYPE_CHECKING:
    import sqlite3


FILE = "history.sqlite"
RUNS = "runs"  # the folder with all runs, next to the file
_RESULT, _MACHINE = "result.json", "machine.json"
_PARTS = (AUTOTUNE_RUNS, SCREEN_RUNS, FOLDER)  # folders inside a run's folder that contain more runs
_NETWORK_KEY = "network"  # in place of a fingerprint
WAIT_S = 10.0  # maximum wait for another writer, which needs milliseconds
_READER_WAIT_S = 1.0  # for a query, which can read the run folders instead
LATEST = 200  # runs that are read before a plan or a run: this takes 20 ms
_LATEST_FOLDERS = 50  # folders that are read if the file cannot be used: half a millisecond each
_WRITABLE = "set GPUTOPO_HOME to a writable folder"
# Version of the tables, in SQLite's user_version. Version 1 had no results, version 2 only results that were
# added one by one; both listed the measured GPUs.
_VERSION = 3

_TABLES = (
    "CREATE TABLE IF NOT EXISTS bandwidth (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL, "
    "saved_at REAL NOT NULL, gpus TEXT NOT NULL, document BLOB NOT NULL, machine BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS bandwidth_of_machine ON bandwidth (fingerprint, id)",
    "CREATE TABLE IF NOT EXISTS result (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL, "
    "finished_at REAL NOT NULL, folder TEXT NOT NULL, model TEXT NOT NULL, document BLOB NOT NULL, "
    "of_hosts INTEGER NOT NULL DEFAULT 0, is_short INTEGER NOT NULL DEFAULT 0)",
    "CREATE INDEX IF NOT EXISTS result_of_machine ON result (fingerprint, finished_at)",
)


def history_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the history, whether it exists or not."""
    home = environ.get("GPUTOPO_HOME")
    if home:
        return Path(home) / FILE
    import platformdirs

    return Path(platformdirs.user_data_dir("gputopo")) / FILE


class _DamagedError(InputError):
    """The file is not a history, or its pages contradict each other."""


@contextlib.contextmanager
def _opened(path: Path, *, write: bool, wait_s: float | None = None) -> "Iterator[sqlite3.Connection]":
    """Open the history for one transaction. Raises InputError instead of SQLite's errors.

    `wait_s`: maximum wait for another writer, in seconds; None: `WAIT_S`.
    """
    import sqlite3

    try:
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            # A reader may have to roll back what a killed writer left, so it needs write access too.
            f"{path.absolute().as_uri()}?mode={'rwc' if write else 'rw'}",
            uri=True,
            timeout=WAIT_S if wait_s is None else wait_s,
            isolation_level=None,
        )
        with contextlib.closing(connection):
            if _version(connection) > _VERSION:
                raise InputError(
                    f"{path} was written by a later version of gputopo",
                    f"{UPDATE_GPUTOPO}; or set GPUTOPO_HOME to another folder",
                )
            if write:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                if write:
                    _bring_up_to_date(connection, path.parent / RUNS)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", _WRITABLE) from error
    except sqlite3.Error as error:
        raise _unusable(path, error, write=write) from error


def _version(connection: "sqlite3.Connection") -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _bring_up_to_date(connection: "sqlite3.Connection", runs: Path) -> None:
    """Create the tables, or convert the tables of an earlier version."""
    version = _version(connection)
    if version == _VERSION:
        return
    if version == 2:
        for column in ("of_hosts", "is_short"):
            connection.execute(f"ALTER TABLE result ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")
        for (folder,) in connection.execute("SELECT DISTINCT folder FROM result").fetchall():
            path = Path(folder)
            if path.is_relative_to(runs.absolute()) and (path / _RESULT).is_file():  # read it again
                connection.execute("DELETE FROM result WHERE folder = ?", (folder,))
    for statement in (*_TABLES, f"PRAGMA user_version = {_VERSION}"):
        connection.execute(statement)


def _unusable(path: Path, error: "sqlite3.Error", *, write: bool) -> InputError:
    import sqlite3

    # The primary code is in the low byte (sqlite.org/rescode.html).
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return _DamagedError(
            f"{path} is damaged: {error}",
            f"gputopo bandwidth --save, or a run, makes a new one; this one is kept as {path.name}.damaged",
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return InputError(f"{path} is in use by another program", "try again when it is done")
    if code == sqlite3.SQLITE_FULL:
        return InputError(
            f"cannot write {path}: no space left", "free some space, or set GPUTOPO_HOME to another folder"
        )
    verb = "write" if write else "read"
    return InputError(f"cannot {verb} {path}: {error}", _WRITABLE)


def _write(path: Path, act: "Callable[[sqlite3.Connection], None]") -> str | None:
    """Change the history in one transaction. If the file is damaged, start a new one and return why.

    Raises InputError if the file cannot be written; nothing is lost then.
    """
    try:
        with _opened(path, write=True) as connection:
            act(connection)
        return None
    except _DamagedError as error:
        aside = path.with_name(f"{path.name}.damaged")
        try:
            path.replace(aside)
            for suffix in ("-wal", "-shm"):  # SQLite's files next to the damaged file
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        except OSError:
            raise error from None
        with _opened(path, write=True) as connection:
            act(connection)
        return f"{error.what}; it was renamed to {aside.name}, and saved bandwidths are lost"


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A saved bandwidth, and the machine at that time, without identities and bandwidth."""

    bandwidth: Bandwidth
    machine: Machine
    saved_at: float  # seconds since the epoch

    @property
    def date(self) -> str:
        """When it was measured, or saved if the capture does not report this: `2026-11-20 16:02 UTC`."""
        measured = self.bandwidth.measured_at
        if measured is not None:
            return date_in_words(measured)
        return f"an unknown date (saved {date_in_words(self.saved_at)})"


def save(path: Path, machine: Machine, bandwidth: Bandwidth, *, saved_at: float) -> str | None:
    """Save a bandwidth under its machine, both without identities. If earlier ones were lost, return why.

    Raises InputError if the file cannot be written; nothing is lost then.
    """
    key = fingerprint(machine)
    if key is None:
        raise InputError(
            "cannot save: the machine cannot be identified (no PCI addresses)",
            "add the machine: --from FILE of gputopo inspect --record, nvidia-smi -q or lspci",
        )
    bare = without_identities(msgspec.structs.replace(machine, bandwidth=bandwidth))
    alone = msgspec.structs.replace(bare, bandwidth=None)
    return _insert(path, key, saved_at, bare.bandwidth or bandwidth, alone)


def save_network(path: Path, bandwidth: Bandwidth, *, saved_at: float) -> str | None:
    """Save measurements between hosts; see `save`."""
    return _insert(path, _NETWORK_KEY, saved_at, bandwidth, Machine(source="live"))


def _insert(path: Path, key: str, saved_at: float, bandwidth: Bandwidth, machine: Machine) -> str | None:
    row = (key, saved_at, schema.encode(bandwidth), schema.encode(machine))

    def insert(connection: "sqlite3.Connection") -> None:
        connection.execute(
            "INSERT INTO bandwidth (fingerprint, saved_at, gpus, document, machine) VALUES (?, ?, '', ?, ?)",
            row,
        )

    return _write(path, insert)


def bandwidths(path: Path, machine: Machine) -> Iterator[Saved]:
    """Iterate over the saved bandwidths of a machine, the latest first.

    Raises InputError for a file that cannot be read.
    """
    key = fingerprint(machine)
    return iter(()) if key is None else _saved(path, key)


def _saved(path: Path, key: str | None) -> Iterator[Saved]:
    """Iterate over what was saved under a key, or all (None), the latest first. Raises InputError."""
    try:
        is_there = path.exists()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", _WRITABLE) from error
    if not is_there:
        return
    with _opened(path, write=False) as connection:
        if not _version(connection):
            return  # nothing was saved yet
        rows = connection.execute(
            "SELECT document, machine, saved_at FROM bandwidth WHERE ? IN (fingerprint, '') ORDER BY id DESC",
            (key or "",),
        ).fetchall()
    for document, machine, saved_at in rows:
        then = schema.decode(machine, Machine, origin=str(path))
        bandwidth = checked(schema.decode(document, Bandwidth, origin=str(path)), then)
        yield Saved(bandwidth=bandwidth, machine=then, saved_at=saved_at)


def latest(path: Path, machine: Machine, gpus: Collection[int] | None = None) -> Saved | None:
    """Return the last saved bandwidth of a machine, or None if there is none.

    Bandwidths that cover all of `gpus` (None: all of the machine) come first. Raises InputError if the file
    cannot be read.
    """
    wanted = {gpu.index for gpu in machine.gpus} if gpus is None else set(gpus)
    return _first_on(bandwidths(path, machine), lambda saved: wanted)


def latest_with_other_gpus(path: Path, machine: Machine) -> Saved | None:
    """Return the last saved bandwidth of this machine with fewer or more GPUs, or None if there is none.

    Bandwidths that cover all GPUs it had then and has now come first. Raises InputError if the file cannot be
    read.
    """
    here = {gpu.pci_address for gpu in answering_gpus(machine)}

    def shared(saved: Saved) -> set[int]:
        return {gpu.index for gpu in answering_gpus(saved.machine) if gpu.pci_address in here}

    return _first_on((one for one in _saved(path, None) if is_same_but_gpus(machine, one.machine)), shared)


def _first_on(saved: Iterable[Saved], wanted: Callable[[Saved], set[int]]) -> Saved | None:
    """Return the first one that was measured on all of its `wanted` GPUs, else the first one."""
    first = None
    for one in saved:
        if wanted(one) <= {gpu for sample in one.bandwidth.samples for gpu in sample.gpu_ends}:
            return one
        first = first or one
    return first


def latest_network(path: Path, hosts: Collection[str]) -> Saved | None:
    """Return the last saved measurement that includes all of these hosts, or None if there is none.

    Raises InputError if the file cannot be read.
    """
    for saved in _saved(path, _NETWORK_KEY):
        between = [one for one in saved.bandwidth.samples if one.kind in NETWORK]
        if {*hosts} <= {end.host for one in between for end in one.ends}:
            return saved
    return None


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier run."""

    result: Result
    finished_at: float  # seconds since the epoch
    folder: str  # of the run; may be deleted
    fingerprint: str  # of the machine; empty if it cannot be identified


def add(path: Path, folder: Path) -> str | None:
    """Add the run of a folder, wherever it is. If saved bandwidths were lost, return why.

    Raises InputError if the file cannot be written; nothing is lost then.
    """
    runs = path.parent / RUNS

    def insert(connection: "sqlite3.Connection") -> None:
        _add_new(connection, runs)
        if not folder.absolute().is_relative_to(runs.absolute()):
            _add(connection, folder.absolute(), runs)

    return _write(path, insert)


def past(
    path: Path,
    machine: Machine | None = None,
    *,
    model: str | None = None,
    since: float | None = None,
    of_hosts: bool = False,
    with_short: bool = False,
    limit: int | None = LATEST,
) -> Iterator[Past]:
    """Iterate over earlier runs, the latest first, except runs with injected faults.

    `machine`, `model`, `since` (seconds since the epoch): None: any. `of_hosts`: runs of several hosts
    instead of one. `with_short`: also the short runs of `--autotune` and of screens. `limit`: maximum number;
    None: all. If the file cannot be used, the runs come from the latest folders (without a limit, from all
    folders); nothing is raised.
    """
    key = None if machine is None else fingerprint(machine)
    if machine is not None and key is None:
        return
    wanted = {
        "fingerprint = ?": key,
        "model = ?": model,
        "finished_at >= ?": since,
        "of_hosts = ?": of_hosts,
        "is_short <= ?": with_short,
    }
    asked = {condition: value for condition, value in wanted.items() if value is not None}
    query = (
        "SELECT document, finished_at, folder, fingerprint FROM result "
        f"WHERE {' AND '.join(asked)} ORDER BY finished_at DESC, id DESC LIMIT ?"
    )
    rows = _runs_by(path, query, (*asked.values(), limit or -1), limit and _LATEST_FOLDERS)
    for document, finished_at, folder, ran_on in rows:
        with contextlib.suppress(InputError):  # the result has a later version
            result = schema.decode(document, Result, origin=str(path))
            if not result.spec.get("drills"):
                where = _text(path.parent / RUNS / folder)
                yield Past(result=result, finished_at=finished_at, folder=where, fingerprint=ran_on)


def _runs_by(
    path: Path, query: str, values: tuple[Any, ...], folders: int | None
) -> list[tuple[bytes, float, str, str]]:
    """Return the rows of a query, after adding all runs to the history.

    If the file cannot be used, query the runs of the latest `folders` folders (None: all) instead.
    """
    runs = path.parent / RUNS
    if not (os.path.exists(path) or os.path.isdir(runs)):  # without loading SQLite
        return []
    with contextlib.suppress(InputError), _opened(path, write=True, wait_s=_READER_WAIT_S) as connection:
        _add_new(connection, runs)
        return connection.execute(query, values).fetchall()
    import sqlite3

    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        _bring_up_to_date(connection, runs)
        _add_new(connection, runs, latest=folders)
        return connection.execute(query, values).fetchall()


def _add_new(connection: "sqlite3.Connection", runs: Path, latest: int | None = None) -> None:
    """Add the runs whose folders are not in the history, with their short runs or cells, oldest first."""
    known = {row[0] for row in connection.execute("SELECT folder FROM result")}
    names = _names(runs) if latest is None else _names(runs)[-latest:]
    for name in names:
        if name in known:
            continue  # its short runs are older than its own result
        folder = runs / name
        for path in (folder, *(folder / part / one for part in _PARTS for one in _names(folder / part))):
            if _text(path.relative_to(runs)) not in known:
                _add(connection, path, runs)


def _names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; the names of runs start with their time."""
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def _text(path: Path) -> str:
    """Return a path as text that SQLite and a result, which is UTF-8, can hold."""
    return str(path).encode(errors="replace").decode()


def _add(connection: "sqlite3.Connection", folder: Path, runs: Path) -> None:
    """Add the run of a folder if its result can be read."""
    file = folder / _RESULT
    try:
        result = schema.decode(file.read_bytes(), Result, origin=str(file))
        finished_at = file.stat().st_mtime
    except (OSError, InputError):
        return
    is_short = folder.parent.name in (AUTOTUNE_RUNS, SCREEN_RUNS)
    where = folder.relative_to(runs) if folder.is_relative_to(runs) else folder
    model = str(result.spec.get("model", ""))
    document = schema.encode(result)
    row = (_ran_on(folder), finished_at, _text(where), model, document, result.of_several_hosts, is_short)
    connection.execute(
        "INSERT INTO result (fingerprint, finished_at, folder, model, document, of_hosts, is_short) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        row,
    )


def _ran_on(folder: Path) -> str:
    """Return the fingerprint of a run's machine; empty if it is unknown."""
    with contextlib.suppress(OSError, InputError):
        return _fingerprint_of((folder / _MACHINE).read_bytes())
    return ""


@lru_cache(maxsize=16)
def _fingerprint_of(document: bytes) -> str:
    """Return the fingerprint in a machine's document. Cached: most runs of a box have the same document."""
    return fingerprint(schema.decode(document, Machine, origin=_MACHINE)) or ""
