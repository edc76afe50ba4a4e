import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.launch.data.tfrecords import walk
from gputopo.launch.supervise.scalars import SampleScalars
from gputopo.values.run.events import Event, GpuSample, RunStarted, Sample, Step, TowerMarks
from tests.invented_runs import gpu_devices, on_hosts


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


def written(folder: Path, samples: int) -> None:
    scalars = SampleScalars(pytest.fail)
    for event in run(folder, samples):
        scalars.event(event)
    scalars.close()


def test_each_gpu_has_whole_records_one_every_few_seconds(tmp_path: Path) -> None:
    written(tmp_path / "board", 12)
    files = sorted((tmp_path / "board").glob("*/events.out.tfevents.*"))
    assert [file.parent.name for file in files] == ["gpu_0", "gpu_1"]
    framings = [walk(file) for file in files]
    assert [(one.records, one.damage) for one in framings] == [(1 + 3, None)] * 2  # at 0, 5 and 10 s


def test_records_are_written_without_tensorflow(tmp_path: Path) -> None:
    writes = (
        "import sys; from pathlib import Path; from tests.launch.supervise.test_scalars import written; "
        "written(Path(sys.argv[1]), 12); sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", writes, str(tmp_path / "board")], check=True)
    assert list(tmp_path.glob("board/gpu_*/events.out.tfevents.*"))


def test_gpus_of_several_hosts_have_folders_with_their_hosts(tmp_path: Path) -> None:
    scalars = SampleScalars(pytest.fail)
    devices = on_hosts(gpu_devices(1), gpu_devices(1))
    for event in run(tmp_path, 7):  # a point every 5 s
        if isinstance(event, RunStarted):
            scalars.event(msgspec.structs.replace(event, devices=devices))
        elif isinstance(event, Sample):
            for rank in range(2):
                scalars.event(msgspec.structs.replace(event, rank=rank, gpus=event.gpus[:1]))
        else:
            scalars.event(event)
    scalars.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n1_gpu_0", "n2_gpu_0"]


def test_nothing_is_written_without_the_option_or_a_gpu(tmp_path: Path) -> None:
    others: tuple[dict[str, Any], ...] = ({"spec": {}}, {"backend": "cpu"})
    for other in others:
        scalars = SampleScalars(pytest.fail)
        started, *rest = run(tmp_path, 3)
        scalars.event(msgspec.structs.replace(started, **other))
        for event in rest:
            scalars.event(event)
        scalars.close()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "board").write_text("a file")
    problems: list[str] = []
    scalars = SampleScalars(problems.append)
    for event in run(tmp_path / "board", 20):
        scalars.event(event)
    (problem,) = problems
    assert "cannot write the samples for TensorBoard" in problem
