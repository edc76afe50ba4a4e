"""Traces of several hosts where one of them has none."""

import json
from pathlib import Path

import pytest

from tests.launch.forks import run_program

pytestmark = pytest.mark.tensorflow

TRACES = """
import json, sys
from pathlib import Path
import msgspec, tensorflow as tf
from gputopo.launch.spec.run_spec import Lifecycle
from gputopo.launch.train.lifecycle.tracing import HostProfile
from gputopo.launch.train.lifecycle.tracing import Tracer
from gputopo.values.run.events import Step, Traced
from tests.launch.jobs.test_restarting import hosts_spec

@tf.function
def work(x):
    with tf.name_scope("tower_0"):
        return tf.linalg.matmul(x, x)

folder = Path(sys.argv[1])
spec = hosts_spec(1, 1, lifecycle=Lifecycle(trace=str(folder), trace_steps=(1,)))
events = []
tracer = Tracer(spec, events.append)  # nobody serves the device of rank 1
tracer.before(1)
work(tf.ones((500, 500)))
tracer.after(Step(time_s=0.0, step=1, seconds=0.1, images=1, loss=0.0, marks=()), None)
(traced,) = (one for one in events if isinstance(one, Traced))

served = HostProfile()
refused = None
try:
    served.end()
except ValueError as error:
    refused = str(error)
bytes_of = []
for _ in range(2):  # one after another
    served.begin()
    bytes_of.append(len(served.end()))
print(json.dumps([list(traced.says), refused, bytes_of]))
"""


def test_a_host_without_a_profile_is_named_and_the_others_are_traced(
    tmp_path: Path,
) -> None:
    done = run_program("-c", TRACES, str(tmp_path))
    assert done.returncode == 0, done.stderr
    says, refused, bytes_of = json.loads(done.stdout.splitlines()[-1])
    (said,) = says
    assert said.startswith("The trace lacks host n1: ")
    assert said.endswith(" unknown device.")
    assert refused == "no profile has begun"
    assert all(size > 0 for size in bytes_of)
