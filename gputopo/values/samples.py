"""What is seen of the GPUs while they are watched: one moment after another, as values."""

import msgspec

from gputopo.values.events import GpuSample


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    """An error that the NVIDIA kernel module reported while it was watched (its number: Xid errors)."""

    code: int
    gpu: int | None = None  # index in the machine; None if the driver did not say


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs at one time. `time_s`: seconds since the epoch. `xids`: those since the moment before."""

    time_s: float
    gpus: tuple[GpuSample, ...]
    xids: tuple[Xid, ...] = ()
