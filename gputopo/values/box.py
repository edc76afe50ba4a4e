"""One machine over time (`gputopo.box/1`): its runs, links and GPUs from measurement to measurement."""

import msgspec

from gputopo.values.run.measurement import Measurement

MIN_SIDE = 3  # minimum number of measurements on each side of a change, without outliers; not measured


class Point(msgspec.Struct, frozen=True):
    """A value at a time, seconds since the epoch."""

    time_s: float
    value: float


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements over time, oldest first. `what`: "alexnet on 2 GPUs 0,1 ...", "host to GPU 3"."""

    what: str
    unit: str
    points: tuple[Point, ...]


class Worsening(msgspec.Struct, frozen=True, kw_only=True):
    """A series that became worse at `since_s`. `before`, `after`: medians."""

    what: str
    unit: str
    since_s: float
    before: float
    after: float
    percent: float  # the decrease
    noise_percent: float  # a decrease below this is noise
    measurements_before: int
    measurements_after: int
    with_events: tuple[str, ...] = ()  # changes between the last measurement before and the first after


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A version that changed at `time_s`."""

    time_s: float
    says: str  # "TensorFlow 2.20 to 2.21"


class Box(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.box/1"):
    """The history of one machine. `runs`: oldest first; `changes`: what became worse, most first.

    `to_repeat`: series of which only the last measurement is low. `elsewhere`: number of runs on other
    hardware, which are not shown.
    """

    machine: str | None
    runs: tuple[Measurement, ...]
    series: tuple[Series, ...]
    changes: tuple[Worsening, ...]
    to_repeat: tuple[Worsening, ...] = ()
    events: tuple[Event, ...] = ()
    elsewhere: int = 0
