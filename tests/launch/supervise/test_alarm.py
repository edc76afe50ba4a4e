import json
import os
import select
import shlex
import struct
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.launch.supervise import Alarm, SampleScalars
from gputopo.values.run.events import (
    Anomaly,
    AnomalyOver,
    Event,
    GpuSample,
    RunStarted,
    Sample,
    Step,
    TowerMarks,
)
from gputopo.values.run.verdict import Cause, Causes
from tests.invented_runs import gpu_devices, on_hosts, step
from tests.kit import commands

CAUSE = Cause(id="power-cap", says="", how="fitted", percent=12, percent_low=11, percent_high=13)
SLOW = Anomaly(
    time_s=0.0,
    tower=1,
    gpu=1,
    part="compute",
    percent_under=12.34,
    percent_under_low=11.0,
    confidence=0.999,
    says="GPU 1 computes 12% slower",
    causes=Causes(says="", found=(CAUSE,)),
)
OVER = AnomalyOver(time_s=0.0, tower=1, gpu=1, part="compute", says="GPU 1 is even again")


def problems_of(target: str, *events: Event, **limits: Any) -> list[str]:
    problems: list[str] = []
    told = Alarm(target, problems.append, **limits)
    for event in events:
        told.event(event)
    told.close()
    return problems


def script(tmp_path: Path, text: str) -> str:
    file = tmp_path / "told.py"
    file.write_text(text)
    return shlex.join([sys.executable, "-I", str(file), str(tmp_path / "out")])


def test_a_command_gets_each_anomaly_on_its_stdin_and_a_summary_in_its_environment(tmp_path: Path) -> None:
    command = script(
        tmp_path,
        "import os, sys\n"
        "names = sorted(name for name in os.environ if name.startswith('GPUTOPO_'))\n"
        "open(sys.argv[1], 'a').write(sys.stdin.read() + '|' + os.environ['GPUTOPO_SAYS'] + '\\n')\n",
    )
    assert problems_of(command, step(1, [(0.1, 0.2)]), SLOW, step(2, [(0.1, 0.2)]), OVER) == []
    lines = [line.rpartition("|") for line in (tmp_path / "out").read_text().splitlines()]
    assert [says for _, _, says in lines] == [SLOW.says, OVER.says]
    assert [json.loads(given)["event"] for given, _, _ in lines] == ["anomaly", "anomaly_over"]


def test_what_fails_is_reported_once(tmp_path: Path) -> None:
    ends = script(tmp_path, "raise SystemExit(3)")
    (problem,) = problems_of(ends, SLOW, OVER, SLOW)
    assert problem.endswith(": ended with exit code 3; the run continues")


def test_a_command_that_does_not_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out")
    reading = os.open(tmp_path / "out", os.O_RDONLY | os.O_NONBLOCK)
    writing = os.open(tmp_path / "out", os.O_WRONLY)  # it has begun, also if the command was killed before
    command = script(
        tmp_path, "import os, sys, time\nfile = open(sys.argv[1], 'w')\nos.fork()\ntime.sleep(1000)"
    )
    (problem,) = problems_of(command, SLOW, command_s=0.3)
    os.close(writing)
    assert select.select([reading], [], [], 60)[0]  # its end: no process of it has it open
    os.close(reading)
    assert "did not end within 0.3 s" in problem


def test_a_command_that_hangs_delays_neither_the_run_nor_its_end(tmp_path: Path) -> None:
    (problem,) = problems_of(script(tmp_path, "import time\ntime.sleep(1000)"), SLOW, OVER, last_s=0.05)
    assert "not delivered within 0.05 s of the end" in problem


def run(folder: Path, samples: int) -> list[Event]:
    """A run of two GPUs, one sample a second, whose temperature is in every second one."""
    spec = {"lifecycle": {"tensorboard": str(folder)}, "batch_size": 8}
    events: list[Event] = [RunStarted(time_s=0.0, host="", spec=spec, devices=gpu_devices(2), backend="gpu")]
    marks = tuple(TowerMarks(tower=n, start_s=0.0, weights_s=0.1, compute_s=0.1 + 0.2 * n) for n in range(2))
    for second in range(samples):
        events.append(
            Step(
                time_s=second,
                step=second,
                seconds=0.4,
                images=16,
                loss=1.0,
                marks=marks,
                global_step=1000 + second,
            )
        )
        gpus = tuple(
            GpuSample(
                gpu=n,
                graphics_mhz=1500 + second,
                power_w=100.5,
                temperature_c=None if second % 2 else 70 + n,
            )
            for n in range(2)
        )
        events.append(Sample(time_s=float(second), gpus=gpus))
    return events


def records(file: Path) -> int:
    """Return the number of records of a file of TensorBoard: length (8 bytes), CRC (4), data, CRC (4)."""
    data, count = file.read_bytes(), 0
    while data:
        (length,) = struct.unpack_from("<Q", data)
        assert len(data) >= 16 + length, "the last record is whole"
        data, count = data[16 + length :], count + 1
    return count


def write(*events: Event) -> None:
    scalars = SampleScalars(pytest.fail)
    for event in events:
        scalars.event(event)
    scalars.close()


def test_each_gpu_has_whole_records_one_every_few_seconds(tmp_path: Path) -> None:
    write(*run(tmp_path / "board", 12))
    files = sorted((tmp_path / "board").glob("*/events.out.tfevents.*"))
    assert [file.parent.name for file in files] == ["gpu_0", "gpu_1"]
    assert [records(file) for file in files] == [1 + 3] * 2  # at 0, 5 and 10 s


def test_numbers_of_steps_are_those_of_protocol_buffers(tmp_path: Path) -> None:
    begin, step, sample = run(tmp_path / "board", 1)
    write(begin, msgspec.structs.replace(step, global_step=128), sample)
    (file, _) = sorted((tmp_path / "board").glob("*/events.out.tfevents.*"))
    assert b"\x10\x80\x01" in file.read_bytes()


def test_a_clock_that_was_set_back_stops_no_points(tmp_path: Path) -> None:
    begin, *events = run(tmp_path / "board", 12)
    write(begin, *events, *events)
    (file, _) = sorted((tmp_path / "board").glob("*/events.out.tfevents.*"))
    assert records(file) == 1 + 2 * 3


def test_records_are_written_without_tensorflow(tmp_path: Path) -> None:
    writes = (
        "import sys; from pathlib import Path; from tests.launch.supervise.test_alarm import run, write; "
        "write(*run(Path(sys.argv[1]), 12)); sys.exit('tensorflow' in sys.modules)"
    )
    assert commands.run("-c", writes, str(tmp_path / "board")).returncode == 0
    assert list(tmp_path.glob("board/gpu_*/events.out.tfevents.*"))


def test_gpus_of_several_hosts_have_folders_with_their_hosts(tmp_path: Path) -> None:
    begin, step, sample = run(tmp_path, 1)
    assert isinstance(sample, Sample)
    begin = msgspec.structs.replace(begin, devices=on_hosts(gpu_devices(1), gpu_devices(1)))
    samples = [msgspec.structs.replace(sample, rank=rank, gpus=sample.gpus[:1]) for rank in range(2)]
    write(begin, *samples, step, samples[0])  # a point of what is known of both
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n1_gpu_0", "n2_gpu_0"]


def test_what_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "board").write_text("a file")
    problems: list[str] = []
    scalars = SampleScalars(problems.append)
    for event in run(tmp_path / "board", 20):
        scalars.event(event)
    (problem,) = problems
    assert "cannot write the samples for TensorBoard" in problem
