import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.values.errors import InputError
from gputopo.values.run.events import Event, encode_line, read_events
from tests.invented_runs import InventedRun, gpu_devices, stream

EVENTS: list[Event] = list(stream(gpu_devices(2), InventedRun(2, slow={1: 0.3}).steps(12)))
LINES = [encode_line(event) for event in EVENTS]


def test_every_event_comes_back_as_it_was_written() -> None:
    assert list(read_events(LINES, origin="run")) == EVENTS
    assert all(line.count(b"\n") == 1 and b'"schema":"gputopo.events/1"' in line for line in LINES)


@given(st.integers(0, sum(map(len, LINES))))
def test_a_file_cut_at_any_byte_gives_the_events_that_are_whole(length: int) -> None:
    whole = b"".join(LINES)[:length]
    read = list(read_events(whole.splitlines(keepends=True), origin="events.jsonl"))
    assert read == EVENTS[: len(read)]
    assert len(read) in (whole.count(b"\n"), whole.count(b"\n") + 1)  # a last line may lack only its newline


def test_an_event_of_a_later_version_and_empty_lines_are_passed_over() -> None:
    later = b'{"event":"moon_phase","schema":"gputopo.events/1","time_s":1.0}\n'
    extra = msgspec.json.encode({**msgspec.json.decode(LINES[0]), "weather": "fine"}) + b"\n"
    assert list(read_events([extra, b"\n", later, *LINES[1:3]], origin="run")) == EVENTS[:3]


@pytest.mark.parametrize("line", [b'{"event":"step"}\n', b"\xff\xfe\n"], ids=["short", "binary"])
def test_a_line_that_is_no_event_is_refused_by_file_and_number(line: bytes) -> None:
    with pytest.raises(InputError, match=r"events\.jsonl, line 2") as caught:
        list(read_events([LINES[0], line, LINES[1]], origin="events.jsonl"))
    assert caught.value.hint
