"""The history of this box: earlier runs and saved bandwidths by machine, in one SQLite file.

The file is `history.sqlite` in gputopo's data folder: `$GPUTOPO_HOME`, else the user's data folder
(`platformdirs`). The next query (`BoxHistory.past`) adds the runs from their folders there, so a lost file is
rebuilt. Only saved bandwidths, and runs whose folders are elsewhere or deleted, exist nowhere else. Machines
are identified by their fingerprints (`topology.same_machine`), networks by the names of their hosts.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gputopo.copies import checked
from gputopo.topology import answering_gpus, fingerprint, is_same_but_gpus, without_identities
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth, Transfer
from gputopo.values.errors import InputError
from gputopo.values.install import UPDATE_GPUTOPO
from gputopo.values.machine import Machine
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import AUTOTUNE_RUNS, FOLDER, SCREEN_RUNS
from gputopo.values.words import date_in_words

if TYPE_CHECKING:
    import sqlite3


FILE = "history.sqlite"
_RESULT, _MACHINE = "result.json", "machine.json"
_PARTS = (AUTOTUNE_RUNS, SCREEN_RUNS, FOLDER)  # folders inside a run's folder that contain more runs
_NETWORK_KEY = "network"  # in place of a fingerprint
WAIT_S = 10.0  # maximum wait for another writer, which needs milliseconds
READER_WAIT_S = 1.0  # for a query, which can read the run folders instead
LATEST = 200  # runs that are read before a plan or a run: this takes 20 ms
_LATEST_FOLDERS = 50  # folders that are read if the file cannot be used: half a millisecond each
_WRITABLE = "set GPUTOPO_HOME to a writable folder"
_VERSION = 3  # of the tables, in SQLite's user_version

_TABLES = (
    "CREATE TABLE IF NOT EXISTS bandwidth (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL, "
    "saved_at REAL NOT NULL, gpus TEXT NOT NULL, document BLOB NOT NULL, machine BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS bandwidth_of_machine ON bandwidth (fingerprint, id)",
    "CREATE TABLE IF NOT EXISTS result (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL, "
    "finished_at REAL NOT NULL, folder TEXT NOT NULL, model TEXT NOT NULL, document BLOB NOT NULL, "
    "of_hosts INTEGER NOT NULL DEFAULT 0, is_short INTEGER NOT NULL DEFAULT 0)",
    "CREATE INDEX IF NOT EXISTS result_of_machine ON result (fingerprint, finished_at)",
    f"PRAGMA user_version = {_VERSION}",
)


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for what gputopo stores, whether it exists or not."""
    if home := environ.get("GPUTOPO_HOME"):
        return Path(home)
    import platformdirs

    return Path(platformdirs.user_data_dir("gputopo"))


class _DamagedError(InputError):
    """The file is not a history, or its pages contradict each other."""


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


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier run."""

    result: Result
    finished_at: float  # seconds since the epoch
    folder: str  # of the run; may be deleted
    fingerprint: str  # of the machine; empty if it cannot be identified


class BoxHistory:
    """The history in a folder, by default gputopo's data folder; the folder and the file need not exist.

    `path`: of the file. `runs`: the folder of all runs. All methods except `past` raise InputError if the
    file cannot be read or written; nothing is lost then. Methods that write return None, or what was lost
    because the file was damaged and a new one was started.
    """

    def __init__(self, folder: Path | None = None) -> None:
        folder = data_folder() if folder is None else folder
        self.path, self.runs = folder / FILE, folder / "runs"

    def save(self, machine: Machine, bandwidth: Bandwidth, *, saved_at: float) -> str | None:
        """Save a bandwidth under its machine, both without identities."""
        key = fingerprint(machine)
        if key is None:
            raise InputError(
                "cannot save: the machine cannot be identified (no PCI addresses)",
                "add the machine: --from FILE of gputopo inspect --record, nvidia-smi -q or lspci",
            )
        bare = without_identities(msgspec.structs.replace(machine, bandwidth=bandwidth))
        alone = msgspec.structs.replace(bare, bandwidth=None)
        return self._insert(key, saved_at, bare.bandwidth or bandwidth, alone)

    def save_network(self, bandwidth: Bandwidth, *, saved_at: float) -> str | None:
        """Save measurements between hosts."""
        return self._insert(_NETWORK_KEY, saved_at, bandwidth, Machine(source="live"))

    def bandwidths(self, machine: Machine) -> Iterator[Saved]:
        """Iterate over the saved bandwidths of a machine, the latest first."""
        key = fingerprint(machine)
        return iter(()) if key is None else self._saved(key)

    def latest(self, machine: Machine, gpus: Collection[int] | None = None) -> Saved | None:
        """Return the last saved bandwidth of a machine, or None if no bandwidth was saved.

        Bandwidths that cover all of `gpus` (None: all of the machine) come first.
        """
        wanted = {gpu.index for gpu in machine.gpus} if gpus is None else set(gpus)
        return _first_on(self.bandwidths(machine), lambda saved: wanted)

    def latest_with_other_gpus(self, machine: Machine) -> Saved | None:
        """Return the last saved bandwidth of this machine with fewer or more GPUs, or None.

        Bandwidths that cover all GPUs it had then and has now come first.
        """
        addresses = {gpu.pci_address for gpu in answering_gpus(machine)}

        def shared(saved: Saved) -> set[int]:
            return {gpu.index for gpu in answering_gpus(saved.machine) if gpu.pci_address in addresses}

        alike = (saved for saved in self._saved(None) if is_same_but_gpus(machine, saved.machine))
        return _first_on(alike, shared)

    def latest_network(self, hosts: Collection[str]) -> Saved | None:
        """Return the last saved measurement that includes all of these hosts, or None if none does."""
        for saved in self._saved(_NETWORK_KEY):
            between = [sample for sample in saved.bandwidth.samples if isinstance(sample, Transfer)]
            if {*hosts} <= {end.host for sample in between for end in sample.ends}:
                return saved
        return None

    def add(self, folder: Path) -> str | None:
        """Add the run of a folder, wherever it is."""

        def insert(connection: "sqlite3.Connection") -> None:
            self._add_new(connection)
            if not folder.absolute().is_relative_to(self.runs.absolute()):
                self._add(connection, folder.absolute())

        return self._write(insert)

    def past(
        self,
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
        instead of one. `with_short`: also the short runs of `--autotune` and of screens. `limit`: maximum
        number; None: all. If the file cannot be used, the runs come from the latest folders (without a limit,
        from all folders); nothing is raised.
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
        rows = self._rows(query, (*asked.values(), limit or -1), limit and _LATEST_FOLDERS)
        for document, finished_at, folder, ran_on in rows:
            with contextlib.suppress(InputError):  # the result has a later version
                result = schema.decode(document, Result, origin=str(self.path))
                if not result.spec.get("drills"):
                    where = _text(self.runs / folder)
                    yield Past(result=result, finished_at=finished_at, folder=where, fingerprint=ran_on)

    @contextlib.contextmanager
    def _opened(self, *, write: bool, wait_s: float | None = None) -> "Iterator[sqlite3.Connection]":
        """Open the file for one transaction. Raises InputError instead of SQLite's errors.

        `wait_s`: maximum wait for another writer, in seconds; None: `WAIT_S`.
        """
        import sqlite3

        try:
            if write:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                # A reader may have to roll back what a killed writer left, so it needs write access too.
                f"{self.path.absolute().as_uri()}?mode={'rwc' if write else 'rw'}",
                uri=True,
                timeout=WAIT_S if wait_s is None else wait_s,
                isolation_level=None,
            )
            with contextlib.closing(connection):
                version = _version(connection)
                if version > _VERSION:
                    raise InputError(
                        f"{self.path} was written by a later version of gputopo",
                        f"{UPDATE_GPUTOPO}; or set GPUTOPO_HOME to another folder",
                    )
                if write:
                    connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    for statement in _TABLES if write and version < _VERSION else ():
                        connection.execute(statement)
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}", _WRITABLE) from error
        except sqlite3.Error as error:
            raise _unusable(self.path, error, write=write) from error

    def _write(self, act: "Callable[[sqlite3.Connection], None]") -> str | None:
        """Change the history in one transaction. If the file is damaged, start a new one and return why."""
        try:
            with self._opened(write=True) as connection:
                act(connection)
            return None
        except _DamagedError as error:
            aside = self.path.with_name(f"{FILE}.damaged")
            try:
                self.path.replace(aside)
                for suffix in ("-wal", "-shm"):  # SQLite's files next to the damaged file
                    self.path.with_name(FILE + suffix).unlink(missing_ok=True)
            except OSError:
                raise error from None
            with self._opened(write=True) as connection:
                act(connection)
            return f"{error.what}; it was renamed to {aside.name}, and saved bandwidths are lost"

    def _insert(self, key: str, saved_at: float, bandwidth: Bandwidth, machine: Machine) -> str | None:
        row = (key, saved_at, schema.encode(bandwidth), schema.encode(machine))

        def insert(connection: "sqlite3.Connection") -> None:
            connection.execute(
                "INSERT INTO bandwidth (fingerprint, saved_at, gpus, document, machine) "
                "VALUES (?, ?, '', ?, ?)",
                row,
            )

        return self._write(insert)

    def _saved(self, key: str | None) -> Iterator[Saved]:
        """Iterate over what was saved under a key, or all (None), the latest first."""
        path = self.path
        try:
            is_there = path.exists()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}", _WRITABLE) from error
        if not is_there:
            return
        with self._opened(write=False) as connection:
            if not _version(connection):
                return  # nothing was saved yet
            rows = connection.execute(
                "SELECT document, machine, saved_at FROM bandwidth WHERE ? IN (fingerprint, '') "
                "ORDER BY id DESC",
                (key or "",),
            ).fetchall()
        for document, machine, saved_at in rows:
            then = schema.decode(machine, Machine, origin=str(path))
            bandwidth = checked(schema.decode(document, Bandwidth, origin=str(path)), then)
            yield Saved(bandwidth=bandwidth, machine=then, saved_at=saved_at)

    def _rows(
        self, query: str, values: tuple[Any, ...], folders: int | None
    ) -> list[tuple[bytes, float, str, str]]:
        """Return the rows of a query, after adding all runs to the history.

        If the file cannot be used, query the runs of the latest `folders` folders (None: all) instead.
        """
        if not (os.path.exists(self.path) or os.path.isdir(self.runs)):  # without loading SQLite
            return []
        with (
            contextlib.suppress(InputError),
            self._opened(write=True, wait_s=READER_WAIT_S) as connection,
        ):
            self._add_new(connection)
            return connection.execute(query, values).fetchall()
        import sqlite3

        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            for statement in _TABLES:
                connection.execute(statement)
            self._add_new(connection, latest=folders)
            return connection.execute(query, values).fetchall()

    def _add_new(self, connection: "sqlite3.Connection", latest: int | None = None) -> None:
        """Add the runs whose folders are not in the history, with short runs or cells, oldest first."""
        known = {row[0] for row in connection.execute("SELECT folder FROM result")}
        for name in _names(self.runs)[-(latest or 0) :]:
            if name in known:
                continue  # its short runs are older than its own result
            folder = self.runs / name
            for path in (folder, *(folder / part / run for part in _PARTS for run in _names(folder / part))):
                if _text(path.relative_to(self.runs)) not in known:
                    self._add(connection, path)

    def _add(self, connection: "sqlite3.Connection", folder: Path) -> None:
        """Add the run of a folder if its result can be read."""
        file = folder / _RESULT
        try:
            result = schema.decode(file.read_bytes(), Result, origin=str(file))
            finished_at = file.stat().st_mtime
        except (OSError, InputError):
            return
        ran_on = ""
        with contextlib.suppress(OSError, InputError):
            ran_on = _fingerprint_of((folder / _MACHINE).read_bytes())
        where = folder.relative_to(self.runs) if folder.is_relative_to(self.runs) else folder
        connection.execute(
            "INSERT INTO result (fingerprint, finished_at, folder, model, document, of_hosts, is_short) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                ran_on,
                finished_at,
                _text(where),
                str(result.spec.get("model", "")),
                schema.encode(result),
                result.of_several_hosts,
                folder.parent.name in (AUTOTUNE_RUNS, SCREEN_RUNS),
            ),
        )


def _version(connection: "sqlite3.Connection") -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


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


def _first_on(saved: Iterable[Saved], wanted: Callable[[Saved], set[int]]) -> Saved | None:
    """Return the first one that was measured on all of its `wanted` GPUs, else the first one."""
    first = None
    for bandwidth in saved:
        measured = {gpu for sample in bandwidth.bandwidth.samples for gpu in sample.gpu_ends}
        if wanted(bandwidth) <= measured:
            return bandwidth
        first = first or bandwidth
    return first


def _names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; the names of runs start with their time."""
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def _text(path: Path) -> str:
    """Return a path as text that SQLite and a result, which is UTF-8, can hold."""
    return str(path).encode(errors="replace").decode()


@lru_cache(maxsize=16)
def _fingerprint_of(document: bytes) -> str:
    """Return the fingerprint in a machine's document. Cached: most runs of a box have the same document."""
    return fingerprint(schema.decode(document, Machine, origin=_MACHINE)) or ""
