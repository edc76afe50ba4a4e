"""Scalars of the GPUs, written without TensorFlow, read by TensorFlow. Of steps: test_evaluating."""

from pathlib import Path

import pytest

from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

WRITE_AND_READ = """
import json, sys
from pathlib import Path
import tensorflow as tf
from tensorflow.core.util.event_pb2 import Event
from gputopo.launch.supervise.sample_scalars import SampleScalars
from tests.launch.supervise.test_alarm import run
found, board = {}, Path(sys.argv[1])
samples = SampleScalars(print)
for event in run(board, 7):
    samples.event(event)
samples.close()
for file in board.glob("*/events*"):
    first, *rest = [Event.FromString(one.numpy()) for one in tf.data.TFRecordDataset(str(file))]
    assert first.file_version == "brain.Event:2"
    found[file.parent.name] = [
        [event.wall_time, event.step, {one.tag: round(one.simple_value, 2) for one in event.summary.value}]
        for event in rest
    ]
json.dump(found, sys.stdout)
"""


def test_what_the_gpus_reported_is_read_as_scalars(tmp_path: Path) -> None:
    written = answer_of("-c", WRITE_AND_READ, str(tmp_path))
    first, (time_s, step, points) = written["gpu_1"]
    assert (time_s, step) == (5.0, 1005)  # one point every 5 s
    assert points == {
        "gpu/core_clock_mhz": 1505.0,
        "gpu/power_w": 100.5,
        "gpu/temperature_c": 71.0,
        "images_per_sec": 20.0,
    }
    assert first[2]["gpu/core_clock_mhz"] == 1500.0
    assert written["gpu_0"][0][2]["images_per_sec"] == 40.0
