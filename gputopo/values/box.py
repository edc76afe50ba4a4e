"""One box over time (`gputopo.box/1`): its runs, links and GPUs from measurement to measurement."""

import msgspec

from gputopo.values.run.measurement import Measurement

MIN_SIDE = 3  # measurements on each side of a change at least, outliers apart. Ours.


class Point(msgspec.Struct, frozen=True):
    """A value at a time, seconds since the epoch."""

    time_s: float
    value: float


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured over time, oldest first. `what`: "alexnet on 2 GPUs 0,1 ...", "host to GPU 3"."""

    what: str
    unit: str
    points: tuple[Point, ...]


class Worsening(msgspec.Struct, frozen=True, kw_only=True):
    """A series that is worse since `since_s`. `before`, `after`: medians."""

    what: str
    unit: str
    since_s: float
    before: float
    after: float
    percent: float  # by which it fell
    noise_percent: float  # a fall below this would be none
    measurements_before: int
    measurements_after: int
    with_events: tuple[str, ...] = ()  # what changed between the last measurement before and the first after


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A version that changed: from `time_s` on it is the new one."""

    time_s: float
    says: str  # "TensorFlow 2.20 to 2.21"


class Box(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.box/1"):
    """The history of one machine. `runs`: oldest first; `changes`: what is worse, most first.

    `to_repeat`: series whose last measurement alone is low; `elsewhere`: runs on other hardware, not shown.
    """

    machine: str | None
    runs: tuple[Measurement, ...]
    series: tuple[Series, ...]
    changes: tuple[Worsening, ...]
    to_repeat: tuple[Worsening, ...] = ()
    events: tuple[Event, ...] = ()
    elsewhere: int = 0
