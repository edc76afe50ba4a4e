from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.supervise.process import output as log
from gputopo.launch.supervise.process.output import LINE_BYTES, LINES, WorkerOutput


def taken(path: Path, *pieces: bytes) -> tuple[str, ...]:
    output = WorkerOutput(path)
    for piece in pieces:
        output.take(piece)
    output.close()
    return output.last_lines


def test_all_goes_to_the_log_and_the_last_lines_are_stored(tmp_path: Path) -> None:
    lines = [b"%d\n" % number for number in range(100)]
    assert taken(tmp_path / "log", *lines) == tuple(str(number) for number in range(100 - LINES, 100))
    assert (tmp_path / "log").read_bytes() == b"".join(lines)


def test_a_line_that_is_not_ended_is_a_last_line(tmp_path: Path) -> None:
    assert taken(tmp_path / "log", b"one\ntw", b"o") == ("one", "two")


def test_of_a_line_that_is_rewritten_its_last_form_is_stored(tmp_path: Path) -> None:
    assert taken(tmp_path / "log", b"10 %\r20 %\r30 %\nwindows\r\n") == ("30 %", "windows")


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    output = WorkerOutput(tmp_path / "log")
    for _ in range(100):
        output.take(b"x" * 65536)
    output.close()
    assert output.last_lines == ("x" * LINE_BYTES,)
    assert (tmp_path / "log").stat().st_size == 100 * 65536


def test_a_worker_that_prints_without_end_leaves_the_first_and_the_last_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "FIRST_BYTES", 1000)
    monkeypatch.setattr(log, "LAST_BYTES", 2000)
    taken(tmp_path / "log", *[b"line %06d\n" % number for number in range(250_000)])
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[:2] == ["line 000000", "line 000001"]
    assert lines[-1] == "line 249999"
    (gap,) = (place for place, one in enumerate(lines) if one.startswith("[gputopo: about 3 MB of output"))
    kept = [int(one.split()[1]) for one in lines[gap + 1 :]]
    assert kept == list(range(kept[0], 250_000))
    assert 2000 - LINE_BYTES <= sum(len(one) + 1 for one in lines[gap + 1 :]) <= 4000


def test_what_tensorflow_prints_at_every_start_is_in_the_log_and_not_among_the_last_lines(
    tmp_path: Path,
) -> None:
    start = b"I0000 port.cc:153] oneDNN custom operations are on. You may see slightly ...\n"
    assert taken(tmp_path / "log", start, b"it broke\n") == ("it broke",)
    assert (tmp_path / "log").read_bytes() == start + b"it broke\n"


def test_bytes_that_are_no_text_are_stored_as_well_as_can_be(tmp_path: Path) -> None:
    assert taken(tmp_path / "log", b"\xff\xfe bad\n") == ("\ufffd\ufffd bad",)


def test_a_log_that_cannot_be_written_costs_the_log_only() -> None:
    assert taken(Path("/dev/full"), b"one\n", b"two\n") == ("one", "two")
    assert taken(Path("/no/such/folder/log"), b"one\n") == ("one",)


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_where_the_parts_are_cut_makes_no_difference(pieces: list[bytes]) -> None:
    assert taken(Path("/dev/null"), *pieces) == taken(Path("/dev/null"), b"".join(pieces))
