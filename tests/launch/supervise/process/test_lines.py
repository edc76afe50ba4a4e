from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.supervise.process.lines import MAX_LINE_BYTES, EventLines, NotAnEventError
from gputopo.values.run.events import Event, RankFailed, RunFinished, WarmupDone, encode_line

EVENTS: list[Event] = [
    WarmupDone(time_s=1.0, steps=3, seconds=0.5),
    RankFailed(time_s=2.0, kind="error", cause="line\nbreak", remedy="ä", exit_code=3),
    WarmupDone(time_s=3.0, steps=0, seconds=0.0),
]
STREAM = b"".join(map(encode_line, EVENTS))


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_where_the_stream_is_cut_makes_no_difference(places: list[int]) -> None:
    cuts = [0, *sorted(places), len(STREAM)]
    lines = EventLines()
    got = [event for a, b in pairwise(cuts) for event in lines.take(STREAM[a:b])]
    assert got == EVENTS
    assert not lines.unfinished


def test_a_line_that_is_begun_is_unfinished() -> None:
    lines = EventLines()
    assert list(lines.take(STREAM[:-1])) == EVENTS[:-1]
    assert lines.unfinished


@pytest.mark.parametrize("line", [b"\x00\xff\n", b"{}\n", b'{"event": "step"}\n', b"[1]\n", b"Hello\n"])
def test_what_is_no_event_is_refused_with_its_beginning(line: bytes) -> None:
    with pytest.raises(NotAnEventError):
        list(EventLines().take(line))


def test_events_before_the_bad_line_are_given() -> None:
    stream = EventLines().take(STREAM + b"Hello\n")
    assert [next(stream) for _ in EVENTS] == EVENTS
    with pytest.raises(NotAnEventError, match="Hello"):
        next(stream)


def test_an_event_that_only_the_launcher_writes_is_refused() -> None:
    line = encode_line(RunFinished(time_s=1.0, status="complete", exit_code=0, wall_s=1.0))
    with pytest.raises(NotAnEventError, match="run_finished"):
        list(EventLines().take(line))


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    lines = EventLines()
    assert list(lines.take(b"x" * MAX_LINE_BYTES)) == []
    with pytest.raises(NotAnEventError):
        list(lines.take(b"x"))
