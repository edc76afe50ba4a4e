import os
import re
import signal
import threading
from pathlib import Path

import pytest

from gputopo.captures import limited_time, load, read_bytes, read_text
from gputopo.values.errors import InputError

GPUS = 257


def many(kind: str) -> str:
    if kind == "recording":
        gpus = ",".join(f'{{"index":{index}}}' for index in range(GPUS))
        return f'{{"schema":"gputopo.machine/1","source":"x","gpus":[{gpus}]}}'
    names = [f"GPU{index}" for index in range(GPUS)]
    return "\n".join(["\t" + "\t".join(names), "\t".join(["GPU0", " X ", *["SYS"] * (GPUS - 1)]), ""])


@pytest.mark.parametrize("kind", ["recording", "nvidia-smi topo -m"])
def test_more_gpus_than_any_machine_has_are_refused(kind: str) -> None:
    with pytest.raises(InputError, match="lists more than 256 GPUs"):
        read_text(many(kind), origin="x")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"x" * (2**26 + 1), "is larger than 64 MiB"),
        (b"x" * (2**25 + 1), "text of more than 32 MiB"),
        (b"x\n" * 1_000_001, "more than 1,000,000 lines"),
        (b"x" * (2**20 + 1), "a line of more than 1 MiB"),
    ],
)
def test_a_text_that_is_longer_than_any_capture_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_bytes(data, origin="x")


def test_reading_ends_when_its_time_is_over_and_what_follows_has_none() -> None:
    with pytest.raises(InputError, match=r"more than 0\.01 s of CPU time"), limited_time("x", 0.01):
        re.search(r"(a+)+$", "a" * 64 + "b")
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0
    with limited_time("x", 60):
        pass
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    text = '{"schema":"gputopo.machine/1","source":"x","gpus":[{"index":0}]}'
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(text))
    writer.start()
    machine = load([str(tmp_path / "pipe")])
    writer.join()
    assert [gpu.index for gpu in machine.gpus] == [0]


@pytest.mark.parametrize("number", [10**400, 2**63])
def test_integers_that_nothing_counts_to_are_refused(number: int) -> None:
    gpu = f'{{"index":0,"memory_mib":{{"total":{number}}}}}'
    text = f'{{"schema":"gputopo.machine/1","source":"x","gpus":[{gpu}]}}'
    with pytest.raises(InputError, match=r"cannot be|not a valid"):
        read_text(text, origin="x")


def test_blanks_without_end_are_read_in_linear_time() -> None:
    with limited_time("x", 2.0), pytest.raises(InputError, match="in an unknown format"):
        read_text(" " * 250_000 + "x\n", origin="x")
