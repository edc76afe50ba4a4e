"""Event lines out of a pipe, piece by piece."""

from collections.abc import Iterator

import msgspec

from gputopo.values.events import (
    BatchTried,
    CheckpointSaved,
    Evaluated,
    Event,
    Exported,
    LossNotFinite,
    MemoryPeak,
    ModelBuilt,
    Noticed,
    PhaseBegun,
    PlacementChecked,
    RankFailed,
    ReplicasCompared,
    Resumed,
    Step,
    Traced,
    WarmupDone,
    decode_line,
)

WORKER_TELLS = (
    ModelBuilt,
    PlacementChecked,
    WarmupDone,
    Step,
    ReplicasCompared,
    PhaseBegun,
    Noticed,
    Resumed,
    CheckpointSaved,
    Evaluated,
    Exported,
    Traced,
    LossNotFinite,
    MemoryPeak,
    BatchTried,
    RankFailed,
)
LONGEST_LINE = 16 * 1024 * 1024  # a step of a thousand towers is far below; more is no event line


class NotAnEventError(Exception):
    """The worker wrote something else than an event of its own; the message holds its beginning."""


class EventLines:
    """Cuts what comes through the pipe into lines and reads them; an unfinished line waits for more."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> Iterator[Event]:
        """Give the events that `data` completes. Raises NotAnEventError at the first line that is none."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                yield _read(line)
        if len(self._rest) > LONGEST_LINE:
            raise NotAnEventError(_shown(self._rest))

    @property
    def unfinished(self) -> bool:
        """Whether a line was begun and not ended."""
        return bool(self._rest.strip())


def _read(line: bytes) -> Event:
    try:
        event = decode_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAnEventError(_shown(line)) from error
    if not isinstance(event, WORKER_TELLS):
        raise NotAnEventError(_shown(line))
    return event


def _shown(line: bytes) -> str:
    return ascii(line[:60].decode(errors="replace"))
