"""`gputopo bench-reduction`, with a process that only pretends in the place of TensorFlow's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ByName, Call

# Notes its job and the GPUs that it sees; a reduction takes 50 ms, and a call without one 0.12 ms.
TIMES = """
import json, os, sys
job = json.loads(sys.argv[1])
asked = {"method": job["method"], "groups": job["groups"], "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}
asked["devices"] = [device["device"] for device in job["run"]["devices"]]
with open(os.environ["GPUTOPO_HOME"] + ".asked", "a") as log:
    print(json.dumps(asked), file=log)
def send(event, **fields):
    os.write(int(sys.argv[2]), json.dumps({"event": event, "time_s": 1.0, **fields}).encode() + b"\\n")
def steps(seconds):
    for number in range(1, job["repeats"] + 1):
        send("step", step=number, seconds=seconds, images=0, loss=0.0, marks=[])
send("model_built", parameters=2**25, parameter_bytes=2**27, import_s=1.0, build_s=1.0)
steps(0.05)
send("phase", phase="calls without a reduction")
steps(0.00012)
"""

Asked = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def asked(worker: Callable[..., None], own_home: Path) -> Asked:
    """Returns what was asked of the processes."""
    worker(TIMES, module="gputopo.launch.jobs.reduction_worker")
    log = own_home.with_name(own_home.name + ".asked")
    return lambda: [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_all_gpus_are_reduced_over_unless_some_are_named(
    call: Call, on_scenario: ByName, asked: Asked
) -> None:
    on_scenario("four")
    done = call("bench-reduction", "--model", "alexnet", "--all-reduce", "copy")
    assert done.code == 0
    assert "Reduction of the gradients of alexnet" in done.out
    for words in ("50.0", "2.68", "4.03", "gpu:0,1,2,3", "copy 0.12 ms"):
        assert words in done.out
    (whole,) = asked()
    assert [name[:4] for name in whole["visible"].split(",")] == ["GPU-"] * 4, "by UUID"
    assert sorted(tower for group in whole["groups"] for tower in group) == [0, 1, 2, 3]
    call("bench-reduction", "--model", "alexnet", "--gpus", "3,1", "--all-reduce", "ring")
    (some,) = asked()[1:]
    order = [whole["visible"].split(",")[gpu] for gpu in (3, 1)]
    assert (some["method"], some["visible"]) == ("ring", ",".join(order))


def test_lost_and_hidden_gpus_are_left_out_and_refused_by_name(
    call: Call, on_scenario: ByName, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_scenario("four")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    assert "gpu:1,2" in call("bench-reduction", "--model", "alexnet", "--all-reduce", "copy").out
    done = call("bench-reduction", "--model", "alexnet", "--gpus", "0,1")
    assert (done.code, "GPU 0" in done.err) == (2, True)


@pytest.mark.usefixtures("without_gpu")
def test_without_a_gpu_cpu_devices_reduce_and_that_is_reported(call: Call, asked: Asked) -> None:
    done = call("bench-reduction", "--model", "alexnet", "--all-reduce", "ring", "--json")
    assert [one["devices"] for one in asked()] == [["/CPU:0", "/CPU:1"]]
    assert done.code == 0
    assert any("CPU devices" in note for note in json.loads(done.out)["notes"])


@pytest.mark.usefixtures("with_broken_driver")
def test_a_broken_driver_is_no_reason_to_reduce_on_the_cpu(call: Call, asked: Asked) -> None:
    done = call("bench-reduction", "--model", "alexnet")
    assert (done.code, done.out, asked()) == (3, "", [])
