"""Bad input of every kind: exit code 2, one line of what, one line of what to do, nothing on stdout."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.cli import COMMANDS, run_command
from tests.cli.conftest import ByName, Call, Called
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS

ASYMMETRIC = "\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tSYS\t X \n"


def refusal(done: Called) -> str:
    """Return the two lines of a refusal; anything else fails the test."""
    lines = done.err.splitlines()
    assert (done.code, done.out, len(lines)) == (2, "", 2), done
    assert lines[0].startswith("gputopo: ")
    assert lines[1].startswith("  ")
    assert len(lines[1].strip()) > 10
    return done.err


def lacks(text: str, words: tuple[str, ...]) -> list[str]:
    """Return the words that are not in the text."""
    return [word for word in words if word not in text]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x7fELF\x02\x01\x01\x00\x00\xff\xfe\x80" * 64,
        b'{"schema": "gputopo.machine/1", "source": "li',
        b'{"schema": "gputopo.machine/99", "source": "live"}',
        b"Dear diary,\ntoday I bought eight GPUs.\n",
        ASYMMETRIC.encode(),
    ],
    ids=["empty", "binary", "truncated", "newer", "prose", "asymmetric"],
)
def test_a_capture_that_cannot_be_read(content: bytes, call: Call, tmp_path: Path) -> None:
    capture = tmp_path / "capture.txt"
    capture.write_bytes(content)
    assert "capture.txt" in refusal(call("inspect", "--from", capture))


def test_a_file_that_is_not_there_and_a_folder(call: Call, tmp_path: Path) -> None:
    assert "nowhere" in refusal(call("inspect", "--from", tmp_path / "nowhere"))
    assert str(tmp_path) in refusal(call("inspect", "--from", tmp_path))


def test_a_recording_that_cannot_be_written_leaves_nothing(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = call("inspect", "--from", "7gforce", "--record", tmp_path / "file" / "machine.json")
    assert lacks(refusal(done), ("cannot make", "file", "folder")) == []
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "--from", "7gforce", "--record"),
        ("report", "--published", "keras-multi-gpu", "--output"),
    ],
)
def test_a_file_that_is_asked_for_gets_its_folder(words: tuple[str, ...], call: Call, tmp_path: Path) -> None:
    place = tmp_path / "a new" / "folder" / "file.json"
    done = call(*words, place)
    assert (done.code, done.err) == (0, "")
    assert place.stat().st_size > 100


def test_a_recording_that_fails_leaves_the_old_one(call: Call, tmp_path: Path, without_gpu: None) -> None:
    place = tmp_path / "machine.json"
    place.write_text("the old one")
    assert "nowhere" in refusal(call("inspect", "--from", tmp_path / "nowhere", "--record", place))
    assert place.read_text() == "the old one"


def test_a_plan_without_a_gpu_or_a_driver_ends_with_3(call: Call, without_gpu: None) -> None:
    done = call("plan", "--model", "alexnet")
    assert (done.code, done.out) == (3, "")
    assert len(done.err.splitlines()) == 2
    assert "--from FILE" in done.err
    assert "gputopo run" in done.err


def test_a_plan_with_a_broken_driver_ends_with_3_and_the_finding(
    call: Call, with_broken_driver: None
) -> None:
    done = call("plan", "--model", "alexnet")
    assert (done.code, done.out) == (3, "")
    assert "kernel module is not loaded" in done.err.splitlines()[0]
    assert "modprobe" in done.err.splitlines()[1]


def test_an_interrupt_ends_with_130_and_without_a_traceback(call: Call, on_scenario: ByName) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    on_scenario("four")
    fake = FakeNvml(SCENARIOS["four"])
    fake.spoil("nvmlDeviceGetName", interrupted)
    with installed(fake):
        done = call("inspect")
    assert (done.code, done.out, done.err) == (130, "", "gputopo: interrupted\n")


@given(st.lists(st.text(max_size=12), min_size=1, max_size=4))
def test_no_arguments_bring_a_traceback(arguments: list[str]) -> None:
    for command in (["inspect"], ["plan", "--model", "alexnet"], ["run", "--model", "mlp", "--dry-run"]):
        assert run_command([*command, "--from", "7gforce", *arguments]) in (0, 2)
    if arguments[0] not in COMMANDS:
        assert run_command(arguments) in (0, 2)


def test_a_bug_of_gputopo_has_an_exit_code_of_its_own_and_two_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(sources: object, **_: object) -> None:
        raise KeyError("a bug\nof two lines")

    monkeypatch.setattr("gputopo.captures.load", fail)
    monkeypatch.delenv("GPUTOPO_TRACEBACK", raising=False)
    assert run_command(["inspect", "--from", "7gforce"]) == 70
    told = capsys.readouterr()
    lines = told.err.splitlines()
    assert (told.out, len(lines)) == ("", 2)
    assert "a bug of gputopo: KeyError" in lines[0]
    assert "GPUTOPO_TRACEBACK=1" in lines[1]
    monkeypatch.setenv("GPUTOPO_TRACEBACK", "1")
    assert run_command(["inspect", "--from", "7gforce"]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libsqlite3.so.0: failed to map segment from shared object"),
    ],
)
def test_a_limit_of_the_system_is_no_bug(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(sources: object, **_: object) -> None:
        raise error

    monkeypatch.setattr("gputopo.captures.load", fail)
    assert run_command(["inspect", "--from", "7gforce"]) == 3
    what, hint = capsys.readouterr().err.splitlines()
    assert (str(error) or "MemoryError") in what
    assert "ulimit -n" in hint


def test_a_recording_does_not_replace_a_folder_or_a_device(call: Call, tmp_path: Path) -> None:
    inspect = ("inspect", "--from", "7gforce", "--record")
    assert "it is a folder" in refusal(call(*inspect, tmp_path))
    assert "it is a device" in refusal(call(*inspect, "/dev/null"))
    assert Path("/dev/null").is_char_device()
