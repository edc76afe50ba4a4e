"""A script that trains by gputopo.launch.strategy, run by gputopo on two hosts of this one's loopback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo.launch.hosts.addresses import free_port

pytestmark = pytest.mark.tensorflow

TRAINS = """
import json, sys
import gputopo.launch
chosen = gputopo.launch.strategy()
import tensorflow as tf
rank = chosen.cluster_resolver.task_id
with chosen.scope():
    weight = tf.Variable(0.0)

@tf.function
def step(target):
    def replica(target):
        context = tf.distribute.get_replica_context()
        weight.assign_sub(0.5 * context.all_reduce(tf.distribute.ReduceOp.MEAN, weight.read_value() - target))
    chosen.run(replica, args=(target,))

for _ in range(3):
    step(tf.constant(float(rank)))
made = isinstance(chosen, tf.distribute.MultiWorkerMirroredStrategy)
print(json.dumps([made, chosen.num_replicas_in_sync, float(weight.numpy())]))
"""


def test_a_script_trains_with_one_strategy_over_both_hosts(tmp_path: Path) -> None:
    hosts = f"localhost:{free_port()},localhost"
    command = (sys.executable, "-m", "gputopo", "run", "--cpu", "--hosts", hosts)
    environ = {**os.environ, "GPUTOPO_HOME": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "2"}
    launchers = [
        subprocess.Popen(
            (*command, "--node-rank", str(rank), "--", sys.executable, "-c", TRAINS),
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [one.communicate(timeout=180) for one in launchers]
    assert [one.returncode for one in launchers] == [0, 0], ended
    # Both targets' mean is 0.5, which the weight comes nearer to by half in each step.
    for out, err in ended:
        made, replicas, weight = json.loads(out)
        assert (made, replicas) == (True, 2)
        assert weight == pytest.approx(0.4375)
        assert "gputopo: MultiWorkerMirroredStrategy with a ring over gRPC, worker " in err
