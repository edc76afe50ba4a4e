"""A script that trains by gputopo.launch.strategy, run by gputopo on two hosts of this one's loopback."""

import json
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.kit import commands
from tests.kit.ports import free_port
from tests.launch.forks import server

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
COMMAND = ("-m", "gputopo", "run", "--cpu", "--hosts")


def test_a_script_trains_with_one_strategy_over_both_hosts(tmp_path: Path) -> None:
    hosts = f"localhost:{free_port()},localhost"
    started = partial(commands.started, GPUTOPO_HOME=str(tmp_path), TF_CPP_MIN_LOG_LEVEL="2")
    with ExitStack() as ending:
        forks = server()
        python = sys.executable if forks is None else ending.enter_context(forks.door(tmp_path))
        program = ("--", python, "-c", TRAINS)
        launchers = [
            ending.enter_context(started(*COMMAND, hosts, "--node-rank", rank, *program))
            for rank in ("0", "1")
        ]
        ended = [(printed.read(), launcher.wait(180)) for launcher, printed in launchers]
    # Both targets' mean is 0.5, which the weight comes nearer to by half in each step.
    for said, code in ended:
        assert code == 0, said
        (line,) = (line for line in said.splitlines() if line.startswith("["))
        made, replicas, weight = json.loads(line)
        assert (made, replicas) == (True, 2)
        assert weight == pytest.approx(0.4375)
        assert "gputopo: MultiWorkerMirroredStrategy with a ring over gRPC, worker " in said
