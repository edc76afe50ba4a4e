"""TensorFlow's coordination service for liveness, barriers and errors of two hosts, in local processes.

    python -m tests.benchmarks.bench_coordination

Printed for each event: the seconds until rank 0 (or rank 1 if the event is rank 0's) is told, and the exit
code of each process, negative for a signal. A host either queries the states of the tasks or runs steps, one
collective of both hosts after another. A task is lost after 4 s without a heartbeat. `gputopo explain
security` says why the rendezvous does not use the service.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.launch.train.hosts import free_ports

HEARTBEAT_MS = 4000
TOLD_S = 40  # seconds to wait until a host is told
JOIN_S = 60
AFTER_S = 8  # seconds until the exit codes are read


def host(asks: str, rank: int, addresses: list[str]) -> None:
    """Join as a rank, wait for the others, and print a line when the service reports a failure.

    `asks`: how it learns of failures: from the "states" of the tasks, or by "steps".
    """
    import tensorflow as tf
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    from tensorflow.core.protobuf import tensorflow_server_pb2
    from tensorflow.python.eager import context
    from tensorflow.python.training.server_lib import ClusterSpec

    found = context.context()
    found.configure_coordination_service(
        "standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=HEARTBEAT_MS,
        coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=len(addresses))],
    )
    cluster = ClusterSpec({"worker": addresses}).as_cluster_def()
    found.enable_collective_ops(
        tensorflow_server_pb2.ServerDef(
            cluster=cluster,
            job_name="worker",
            task_index=rank,
            protocol="grpc",
            default_session_config=found.config,
        )
    )
    found.ensure_initialized()
    print("joined", flush=True)
    told, step = False, 0
    while True:
        time.sleep(0.1)
        try:
            if asks == "steps":
                step += 1
                keys = {"group_size": len(addresses), "group_key": 1, "instance_key": step}
                tf.raw_ops.CollectiveReduceV2(
                    input=tf.ones(1),
                    **{name: tf.constant(number) for name, number in keys.items()},
                    ordering_token=[],
                    merge_op="Add",
                    final_op="Id",
                    communication_hint="ring",
                ).numpy()
                continue
            states = found.get_task_states([("worker", len(addresses))])
            what = next((str(one) for one in states if one is not None), None)
        except Exception as error:  # noqa: BLE001 - whatever it reports is the result
            what = str(error)
        if what is not None and not told:
            told = True
            print(f"told {time.time()} {what.splitlines()[0]}", flush=True)


def start(asks: str, rank: int, addresses: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a host whose output goes to `log`."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.bench_coordination", asks, str(rank), *addresses],
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )


def wait_for(text: str, log: Path, timeout_s: float) -> str | None:
    """Return the first line that begins with `text`, or None after the timeout."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        for line in log.read_text().splitlines():
            if line.startswith(text):
                return line
        time.sleep(0.1)
    return None


def measure(
    asks: str, event: str, told: int, happen: Callable[[list[subprocess.Popen[bytes]]], None]
) -> None:
    """Let two hosts join, cause an event, and print when rank `told` is told."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with TemporaryDirectory() as folder:
        logs = [Path(folder, f"{number}.log") for number in range(2)]
        hosts = [start(asks, rank, addresses, logs[rank]) for rank in range(2)]
        try:
            if not all(wait_for("joined", log, JOIN_S) for log in logs[:2]):
                sys.exit("the hosts did not join")
            began_s = time.time()
            happen(hosts)
            line = wait_for("told", logs[told], TOLD_S)
            after = "not told" if line is None else f"{float(line.split()[1]) - began_s:.1f} s"
            time.sleep(AFTER_S)
            codes = ", ".join(str(one.poll()) for one in hosts[:2])
            words = "" if line is None else line.split(maxsplit=2)[2][:90]
            print(f"| {asks} | {event} | {after} | {codes} | {words} |", flush=True)
        finally:
            for one in hosts:
                with suppress(ProcessLookupError):
                    one.kill()
                one.wait()


def main() -> None:
    """Measure each event."""
    print("| asks | event | told after | exit codes | words |\n|---|---|---|---|---|")
    for asks in ("states", "steps"):
        for rank in (1, 0):
            for what, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):

                def happen(hosts: list[subprocess.Popen[bytes]], of: int = rank, by: int = number) -> None:
                    hosts[of].send_signal(by)

                measure(asks, f"rank {rank} is {what}", 1 - rank, happen)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        host(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    else:
        main()
