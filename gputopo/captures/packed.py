"""Files that are packed with gzip, bzip2 or xz: any text, `nvidia-bug-report.log.gz` above all, and tars."""

import bz2
import lzma
import zlib
from typing import Protocol

from gputopo.captures import intake
from gputopo.values.errors import InputError

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
_TAR = slice(257, 262)
_FIRST = 1024


class _Unpacker(Protocol):
    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...

    @property
    def eof(self) -> bool: ...


def is_packed(data: bytes) -> bool:
    """Return whether a file is packed, by its first bytes."""
    return data.startswith(tuple(_MAGIC))


def unpacked_text(data: bytes, *, origin: str, max_bytes: int) -> bytes:
    """Return the text in a packed file; other data, and packed archives, as they are.

    Raises InputError if the text is longer than `max_bytes`, or the file is damaged or cut.
    """
    if not is_packed(data):
        return data
    kind = _kind(data)
    try:
        first = _unpacker(kind).decompress(data, _FIRST)
    except (zlib.error, OSError, lzma.LZMAError, EOFError):
        return data
    if not first:
        raise InputError(f"{origin} is a {kind} file that is cut short", _hint(kind))
    if first[_TAR] == b"ustar" or intake.decoded(first[: len(first) // 4 * 4]) is None:
        return data
    return unpacked(data, origin=origin, max_bytes=max_bytes)


def unpacked(data: bytes, *, origin: str, max_bytes: int) -> bytes:
    """Return the content of a packed file, of all its members: `gzip -c a b` and logrotate write several.

    What is not packed is returned as it is. Raises InputError if it is longer than `max_bytes`, before it is
    unpacked further, or if the file is damaged or cut.
    """
    if not is_packed(data):
        return data
    content = b""
    kind = _kind(data)
    while is_packed(data):
        unpacker = _unpacker(kind)
        try:
            content += unpacker.decompress(data, max_bytes + 1 - len(content))
        except (zlib.error, OSError, lzma.LZMAError, EOFError) as error:
            raise InputError(f"{origin} is a damaged {kind} file: {error}", _hint(kind)) from error
        if len(content) > max_bytes:
            raise InputError(
                f"{origin} is larger than {max_bytes >> 20} MiB unpacked", "give the capture alone"
            )
        if not unpacker.eof:
            raise InputError(f"{origin} is a {kind} file that is cut short", _hint(kind))
        data = getattr(unpacker, "unused_data", b"")
    return content


def _kind(data: bytes) -> str:
    return next(kind for magic, kind in _MAGIC.items() if data.startswith(magic))


def _hint(kind: str) -> str:
    return f"copy the file again, or unpack it ({kind} -d) and give the text"


def _unpacker(kind: str) -> _Unpacker:
    if kind == "gzip":
        return zlib.decompressobj(wbits=31)
    return bz2.BZ2Decompressor() if kind == "bzip2" else lzma.LZMADecompressor()
