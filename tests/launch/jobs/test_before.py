"""Which earlier runs are read for a plan, or a run, of several hosts."""

from pathlib import Path

import msgspec
import pytest

from gputopo.captures import read_bundled
from gputopo.launch import Target
from gputopo.launch.hosts import plan_hosts
from gputopo.launch.jobs import known_of, past_of
from gputopo.launch.spec import spec_of
from gputopo.planner import Request
from gputopo.topology import without_identities
from gputopo.values import schema
from gputopo.values.run.result import DeviceResult, Result, Throughput
from tests.launch.hosts.test_planning import brought

HERE = read_bundled("7gforce-v2")
ASKED = Request(model="resnet50")
SPEED = Throughput(mean=100.0, uncertainty=0.1, jitter=1.0, median=100.0, total=100.0)


def on_cpus() -> Target:
    hosts = (brought("n1", HERE), brought("n2", HERE))
    return plan_hosts(hosts, ASKED, cpu=True).target


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """A run of this machine and another one that is in the data folder."""
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path))
    spec = spec_of(on_cpus(), "resnet50")
    found = Result(
        status="complete",
        exit_code=0,
        spec=msgspec.json.decode(schema.encode(spec)),
        backend="cpu",
        throughput=SPEED,
        devices=tuple(DeviceResult(device=one, batch_size=8) for one in spec.devices),
    )
    folder = tmp_path / "runs/20260101-000000-resnet50-1"
    folder.mkdir(parents=True)
    schema.write(folder / "result.json", found)
    schema.write(folder / "machine.json", without_identities(HERE))
    return found


def test_a_run_over_hosts_is_judged_beside_those_over_the_same_ones(result: Result) -> None:
    target = on_cpus()
    known = known_of(target, spec_of(target, "resnet50"), past_of(target))
    assert known is not None
    assert known.expected is not None
    assert known.expected.source == "an earlier run of this job on these hosts"
