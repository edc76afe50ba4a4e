"""What this machine's TensorFlow cannot compute is refused before training, in words."""

from typing import Any

import pytest

from gputopo.values import schema
from gputopo.values.run.events import Event, read_events
from tests.launch.forks import answer_of
from tests.launch.train.worker_process import trivial_spec

pytestmark = pytest.mark.tensorflow

WITHOUT_ONEDNN = """
import json, os, sys
import tensorflow as tf
from gputopo.values.errors import GputopoError
from gputopo.launch.train.placement.devices import require_kernels
from gputopo.launch.train import worker
from tests.launch.specs import cpu_spec
from gputopo.launch.spec.run_spec import Precision

code = worker.main([sys.argv[1], str(os.open(sys.argv[2], os.O_WRONLY))])
cpu = tf.config.list_physical_devices("CPU")[0]  # nothing was made: its devices may be set
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
answers = {}
for compute in ("fp32", "bf16", "fp16"):
    for xla in (False, True):
        try:
            require_kernels(cpu_spec(data_format="NCHW", precision=Precision(compute=compute, xla=xla)))
            answers[f"{compute}-{xla}"] = None
        except GputopoError as error:
            answers[f"{compute}-{xla}"] = [error.what, error.hint]
print(json.dumps([code, answers]))
"""


@pytest.fixture(scope="module")
def without_onednn(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[Event], dict[str, Any]]:
    """The worker's exit code and events for a run with channels first; what each type is answered."""
    folder = tmp_path_factory.mktemp("without")
    file, events = folder / "spec.json", folder / "events.jsonl"
    schema.write(file, trivial_spec(data_format="NCHW"))
    events.write_bytes(b"")
    more = {"TF_ENABLE_ONEDNN_OPTS": "0"}
    code, answers = answer_of("-c", WITHOUT_ONEDNN, str(file), str(events), more=more)
    with events.open("rb") as stream:
        return code, list(read_events(stream, origin="events.jsonl")), answers


def test_channels_first_without_onednn_is_refused_before_anything_is_made(
    without_onednn: tuple[int, list[Event], dict[str, Any]],
) -> None:
    code, events, _ = without_onednn
    assert code == 2
    (failed,) = events
    assert "TF_ENABLE_ONEDNN_OPTS=0" in failed.cause  # type: ignore[union-attr]
    assert "NHWC" in failed.remedy  # type: ignore[union-attr]


def test_without_onednn_no_type_is_computed_with_channels_first_but_by_xla(
    without_onednn: tuple[int, list[Event], dict[str, Any]],
) -> None:
    _, _, answers = without_onednn
    for compute in ("fp32", "bf16", "fp16"):
        what, hint = answers[f"{compute}-False"]
        assert what.startswith(f"/CPU:0 cannot compute in {compute} with --data-format NCHW")
        assert "--xla" in hint
        assert answers[f"{compute}-True"] is None
