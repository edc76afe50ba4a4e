"""Decodes events line by line from the chunks of a pipe."""

from collections.abc import Iterator

import msgspec

from gputopo.values.run.events import Event, decode_line

MAX_LINE_BYTES = 16 * 1024 * 1024  # a step of a thousand towers is far smaller


class NotAnEventError(Exception):
    """The worker wrote a line that is not an event. The message has the start of the line."""


class EventLines:
    """Splits the data from a pipe into lines and decodes them; an unfinished line waits for more data."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> Iterator[Event]:
        """Yield the events that `data` completes. Raises NotAnEventError at the first invalid line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                try:
                    yield decode_line(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise NotAnEventError(_shown(line)) from error
        if len(self._rest) > MAX_LINE_BYTES:
            raise NotAnEventError(_shown(self._rest))

    @property
    def unfinished(self) -> bool:
        """Whether the last line is incomplete."""
        return bool(self._rest.strip())


def _shown(line: bytes) -> str:
    return ascii(line[:60].decode(errors="replace"))
