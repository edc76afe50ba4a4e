"""JSON in and out: every document has its kind (`"schema": "gputopo.<kind>/<major>"`).

Unknown extra fields are ignored, so that a file from a later minor version can be read. An unknown kind or a
newer major version is refused with a message.
"""

import contextlib
import errno
import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from gputopo.values.ends import End
from gputopo.values.errors import FullDiskError, InputError
from gputopo.values.install import UPDATE_GPUTOPO
from gputopo.values.subject import Subject

T = TypeVar("T", bound=msgspec.Struct)

# Errors of msgspec for bytes that are not a document of any kind.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
# Errors of the disk, or of a file size limit, not of the name that the user gave.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def encode(value: msgspec.Struct | dict[str, Any]) -> bytes:
    """Return the JSON form of a value on one line, with its `schema` field first if it has one."""
    return _escaped(msgspec.json.encode(value, enc_hook=as_text))


def encode_pretty(value: msgspec.Struct | dict[str, Any]) -> str:
    """Return the JSON form of a value for people: two-space indent and a newline at the end."""
    return msgspec.json.format(encode(value), indent=2).decode() + "\n"


def to_builtins(value: msgspec.Struct) -> dict[str, Any]:
    """Return the JSON form of a value as a dictionary of plain Python values."""
    built: dict[str, Any] = msgspec.to_builtins(value, enc_hook=as_text)
    return built


def schema_of(data: bytes | str) -> str | None:
    """Return the `schema` field of a JSON document, or None if it is not an object or has none."""
    try:
        head = msgspec.json.decode(data, type=_Head)
    except UNREADABLE:
        return None
    return head.schema


def decode(data: bytes | str, kind: type[T], *, origin: str) -> T:
    """Read one JSON document of the given kind. `origin` (a file name) is part of the error.

    Raises InputError if it is not JSON, of another kind or of a newer major version, or if a field has the
    wrong type.
    """
    wanted = str(kind.__struct_config__.tag)
    try:
        tag = msgspec.json.decode(data, type=_Head).schema
        if tag is not None and tag != wanted:
            raise _other_schema(origin, tag, wanted)
        return msgspec.json.decode(data, type=kind, dec_hook=from_text)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{origin} is not a valid {wanted}: {error}", "write the file again with gputopo"
        ) from error
    except RecursionError as error:
        raise InputError(
            f"{origin} is JSON that is nested too deep", "write it again with gputopo inspect --record"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{origin} is not complete JSON: {error}", "copy the file again, or write it again with gputopo"
        ) from error


def as_text(value: object) -> object:
    """Return the JSON form of a text or of samples; msgspec's `enc_hook`."""
    if isinstance(value, str):
        return str(value)
    from gputopo.values.bandwidth import Samples  # most processes have none
    from gputopo.values.bandwidth_json import to_json

    if isinstance(value, Samples):
        return to_json(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def from_text(kind: type[Any], text: Any) -> Any:
    """Return the value for what `as_text` wrote; msgspec's `dec_hook`."""
    parse = _PARSERS.get(kind)
    if parse is None:  # of `Samples`
        from gputopo.values.bandwidth_json import from_json

        return from_json(text, from_text)
    if isinstance(text, str):
        return parse(text)  # msgspec turns a ValueError into a ValidationError
    raise ValueError(f"Expected `str`, got `{type(text).__name__}`")


_PARSERS: dict[type[Any], Callable[[str], Any]] = {
    Subject: Subject.parse,
    End: functools.lru_cache(maxsize=1024)(End),  # few ends, read for every sample
}


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file completely or not at all: to a temporary name next to it, then rename it.

    Raises InputError if the file cannot be written (FullDiskError if the disk is the reason), or if it is a
    folder or a device, which a rename would replace. The former file is then unchanged.
    """
    try:
        taken = path.exists() and not path.is_file()
    except OSError as error:  # a folder without permission, a name that is too long
        raise _unwritable(path, error) from error
    if taken:
        raise InputError(
            f"cannot write {path}: it is a {'folder' if path.is_dir() else 'device or a pipe'}",
            "use a new file, or one that may be replaced",
        )
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _unwritable(path, error) from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        os.chmod(temporary, 0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, for files that the user requested. Raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {folder}: {error.strerror}", "use another folder") from error


def write(path: Path, value: msgspec.Struct) -> None:
    """Write a value as indented JSON, completely or not at all. Raises InputError."""
    with replacing(path) as stream:
        stream.write(encode_pretty(value).encode())


class _Head(msgspec.Struct):
    schema: str | None = None


# Control characters that JSON leaves unchanged (U+007F to U+009F: a terminal may interpret them), and
# characters that change the direction of text (Unicode, Bidirectional Algorithm, section 2).
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def _escaped(document: bytes) -> bytes:
    """Return JSON with characters escaped that affect a terminal. These occur in strings only."""
    if document.isascii() and b"\x7f" not in document:
        return document
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", document.decode()).encode()


def _unwritable(path: Path, error: OSError) -> InputError:
    what = f"cannot write {path}: {error.strerror}"
    if error.errno in DISK_ERRORS:
        return FullDiskError(what, "free some space, or use a file on another disk")
    return InputError(what, "use a file in an existing, writable folder")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _other_schema(origin: str, schema: str, wanted: str) -> InputError:
    if schema.partition("/")[0] == wanted.partition("/")[0]:
        what = f"{origin} was written by another version of gputopo: {schema}, this one reads {wanted}"
        return InputError(what, UPDATE_GPUTOPO)
    return InputError(f"{origin} holds {schema}, not {wanted}", f"give a file that holds {wanted}")
