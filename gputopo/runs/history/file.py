"""The file of the history: where it is, its tables, and one transaction at a time.

A document is written in one transaction, so a full disk or a killed process leaves the file as it was; two
writers wait for one another, readers for nobody (SQLite's WAL). A damaged file is never replaced: its data
may be recovered by hand. A file of a later version is neither read nor written.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gputopo.values.errors import InputError

if TYPE_CHECKING:
    import sqlite3

FILE = "history.sqlite"
WAIT_S = 10.0  # for another writer, which needs milliseconds
_VERSION = 2  # of the tables, in SQLite's user_version; 1 had no results

_TABLES = """
CREATE TABLE IF NOT EXISTS bandwidth (
    id INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    saved_at REAL NOT NULL,
    gpus TEXT NOT NULL,
    document BLOB NOT NULL,
    machine BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS bandwidth_of_machine ON bandwidth (fingerprint, id);
CREATE TABLE IF NOT EXISTS result (
    id INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    finished_at REAL NOT NULL,
    folder TEXT NOT NULL,
    model TEXT NOT NULL,
    document BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS result_of_machine ON result (fingerprint, finished_at);
"""


def date_in_words(seconds: float) -> str:
    """Return seconds since the epoch as `2026-11-20 16:02 UTC`."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return "unknown date"


def history_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the history, whether it exists or not."""
    home = environ.get("GPUTOPO_HOME")
    if home:
        return Path(home) / FILE
    import platformdirs

    return Path(platformdirs.user_data_dir("gputopo")) / FILE


def exists(path: Path) -> bool:
    """Return whether there is a history. Raises InputError where its folder may not be looked into."""
    try:
        return path.exists()
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", "set GPUTOPO_HOME to a folder that you may write to"
        ) from error


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
                if write:
                    _make_tables(connection)
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


def _check_version(connection: "sqlite3.Connection", path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise InputError(
            f"{path} was written by a later version of gputopo",
            "update gputopo (pip install -U gputopo), or set GPUTOPO_HOME to another folder",
        )


def is_empty(connection: "sqlite3.Connection", table: str = "bandwidth") -> bool:
    """Return whether a file has no such table: it was created and nothing saved, or by an earlier version."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
    return found.fetchone() is None


def _make_tables(connection: "sqlite3.Connection") -> None:
    for statement in filter(str.strip, _TABLES.split(";")):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_VERSION}")


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
