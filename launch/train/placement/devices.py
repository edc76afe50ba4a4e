"""The worker's TensorFlow devices: set up once, before anything else uses TensorFlow."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.device_names import CLIENT, JOB, host_of, rank_of, short_name, task_name
from gputopo.launch.hosts.addresses import free_port
from gputopo.launch.spec.env import ALLOW_GROWTH, GPU_THREAD_COUNT, GPU_THREAD_MODE
from gputopo.launch.spec.host_place import CPUS
from gputopo.launch.spec.rules import check_layout
from gputopo.launch.train.op_errors import first_line
from gputopo.probes import load_cuda_libraries, read_tensorflow
from gputopo.values.errors import HardwareError
from gputopo.values.index_ranges import index_ranges
from gputopo.values.install import install_tensorflow, missing_libraries
from gputopo.values.run.all_reduce import COLLECTIVES, parse
from gputopo.values.run.spec import RunSpec

HOST = "/CPU:0"  # reads the time and adds up losses


def set_up_devices(spec: RunSpec) -> None:
    """Create the logical devices of the spec, and forbid TensorFlow to place an op on another device.

    On the CPU backend there is one logical CPU device for each of the spec's devices; they share the cores.
    If the spec sets no threads, CPU devices that run at the same time divide the cores among their ops;
    TensorFlow chooses all other numbers of threads. GPU memory grows, or is limited. Raises UsageError if a
    layout needs oneDNN and it is off, and HardwareError if TensorFlow sees fewer GPUs than the spec has.
    """
    check_layout(spec, os.environ)
    tf.config.set_soft_device_placement(False)
    _set_numerics(spec)
    intra_threads = spec.runtime.intra_threads or _threads_of_an_op(spec, spec.rank or 0)
    if intra_threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(intra_threads)
    if spec.runtime.inter_threads is not None:
        tf.config.threading.set_inter_op_parallelism_threads(spec.runtime.inter_threads)
    names = [device.device for device in spec.devices if device.rank == (spec.rank or 0)]
    if spec.backend == "cpu":
        cpu = tf.config.list_physical_devices("CPU")[0]
        count = 1 + max((int(name.rpartition(":")[2]) for name in names), default=0)
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        return
    load_cuda_libraries()
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) < len(names):
        raise too_few_gpus(len(gpus), len(names))
    limit = spec.runtime.memory_limit_mib
    for gpu in gpus:
        if limit is None:
            tf.config.experimental.set_memory_growth(gpu, True)
        else:  # TensorFlow does not accept both
            tf.config.set_logical_device_configuration(
                gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit)]
            )


def too_few_gpus(seen: int, planned: int) -> HardwareError:
    """Return the error if TensorFlow sees fewer GPUs than planned, with the cause."""
    what, install = f"TensorFlow sees {seen} of the {planned} planned GPUs", read_tensorflow()
    if install is not None and install.missing_libraries:
        what = f"{what}: {missing_libraries(install.missing_libraries)}"
        return HardwareError(what, install_tensorflow(install.version, cuda=True))
    return HardwareError(what, "see the CUDA lines in worker.log, and gputopo explain install")


def _set_numerics(spec: RunSpec) -> None:
    if spec.backend == "gpu":
        tf.config.experimental.enable_tensor_float_32_execution(spec.precision.tf32 == "on")
    if spec.precision.deterministic:
        tf.config.experimental.enable_op_determinism()


@contextmanager
def joined(spec: RunSpec) -> Iterator[None]:
    """Join the servers of the other hosts if this process trains over all of them.

    Call `set_up_devices` first. In this context devices without a task belong to this process. The process
    joins as rank 0, which is 2 to 4 % faster than a client next to a server that has the devices. For
    collectives it joins as a client: rank 0's collectives with other hosts would wait until their time limit
    (TensorFlow 2.21: it resolves its own devices within itself). Raises HardwareError if this host's own
    server cannot listen on its address.
    """
    server = None
    if spec.servers and spec.rank is None:
        try:
            server = _connect(spec)
            tf.config.list_logical_devices()  # waits for servers that are not there yet
        except (tf.errors.UnknownError, tf.errors.AlreadyExistsError) as error:
            raise cannot_listen(spec, 0, error) from error
    with home():
        yield
    del server  # must be referenced until here


def _connect(spec: RunSpec) -> Any:
    """Join as rank 0. For collectives, join as a client and return a new server for rank 0's devices."""
    cluster, job, server = cluster_of(spec), JOB, None
    if reduces_by_collectives(spec):
        server = tf.distribute.Server(cluster, JOB, 0, protocol="grpc", config=server_config(spec, 0))
        job, address = CLIENT, spec.servers[0].address.rpartition(":")[0]
        cluster = tf.train.ClusterSpec({**cluster.as_dict(), CLIENT: [f"{address}:{free_port()}"]})
    tf.config.experimental_connect_to_cluster(cluster, job_name=job, task_index=0, protocol="grpc")
    return server


def reduces_by_collectives(spec: RunSpec) -> bool:
    """Return whether TensorFlow's collectives add up the gradients of several hosts."""
    of_replicas = spec.task == "train" and spec.variable_update == "replicated" and len(spec.ranks) > 1
    return of_replicas and parse(spec.all_reduce or "copy").name in COLLECTIVES


def cluster_of(spec: RunSpec) -> Any:
    """Return the servers of the hosts that have devices, by rank (ClusterSpec)."""
    return tf.train.ClusterSpec({JOB: {rank: spec.servers[rank].address for rank in spec.ranks}})


def cannot_listen(spec: RunSpec, rank: int, error: Exception) -> HardwareError:
    """Return the error if TensorFlow cannot start a host's server."""
    return HardwareError(
        f"TensorFlow's server cannot listen on {spec.servers[rank].address}: {first_line(str(error))}",
        "see whether another program has the port, and whether the address is this host's",
    )


def home() -> AbstractContextManager[Any]:
    """Return the scope in which device names without a task belong to this process. Use it in graphs as well.

    A graph does not inherit the scope in which it is built, and with several hosts `/CPU:0` is ambiguous.
    """
    ranks = (rank_of(device.name) for device in tf.config.list_logical_devices())  # a client has none
    own_rank = next((rank for rank in ranks if rank is not None), None)
    return nullcontext() if own_rank is None else tf.device(task_name(own_rank))


def done_by_host(ops: Sequence[Any]) -> list[Any]:
    """Return one op for each host, which is done when all of these ops on that host are done.

    So a wait from another host needs one message over the network, not one for each op.
    """
    by_host: dict[int | None, list[Any]] = {}
    for op in ops:
        by_host.setdefault(rank_of(op.device), []).append(op)
    if len(by_host) < 2:
        return list(ops)
    done = []
    for host_ops in by_host.values():
        with tf.device(host_of(host_ops[0].device)), tf.control_dependencies(host_ops):
            done.append(tf.no_op())
    return done


def settle() -> None:
    """Wait until all assignments to variables are done, also on other hosts.

    A graph that reads a variable on another host does not wait for a value that was just assigned from
    outside (TensorFlow 2.21: some of 20 variables of 4 MB are stale in a third of the steps).
    """
    with tf.experimental.async_scope():  # the scope's end waits for the executors of all hosts
        pass


def server_config(spec: RunSpec, rank: int) -> Any:
    """Return the settings (ConfigProto) of a host's server, as `set_up_devices` makes them on rank 0."""
    names = [device.device for device in spec.devices if device.rank == rank]
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=spec.runtime.intra_threads or _threads_of_an_op(spec, rank) or 0,
        inter_op_parallelism_threads=spec.runtime.inter_threads or 0,
    )
    config.experimental.collective_group_leader = f"/job:{JOB}/replica:0/task:0"
    _set_numerics(spec)
    if spec.backend == "cpu":
        config.device_count["CPU"] = max(len(names), 1)
    elif spec.runtime.memory_limit_mib is None:
        config.gpu_options.allow_growth = True
    else:
        for _ in names:
            config.gpu_options.experimental.virtual_devices.add(
                memory_limit_mb=[spec.runtime.memory_limit_mib]
            )
    return config


def settings(spec: RunSpec) -> dict[str, str]:
    """Return the runtime's settings for the result, without settings that TensorFlow chooses itself."""
    threads = {
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
    }
    chosen = {name: str(count) for name, count in threads.items() if count}
    if spec.precision.deterministic:
        chosen["deterministic"] = "on"
    if spec.backend == "cpu":
        return chosen
    mode = os.environ.get(GPU_THREAD_MODE, "global")
    count = os.environ.get(GPU_THREAD_COUNT, "")
    limit = spec.runtime.memory_limit_mib
    growth = os.environ.get(ALLOW_GROWTH, "true").lower() in ("true", "1")
    memory = f"{limit} MiB" if limit is not None else "grows" if growth else "all at once"
    if CPUS in os.environ:
        chosen["cpus"] = index_ranges(os.sched_getaffinity(0))
    return chosen | {
        "gpu_threads": f"{mode} {count}" if count and mode != "global" else mode,
        "gpu_memory": memory,
        "tf32": spec.precision.tf32,
    }


def require_device(device: str) -> None:
    """Raise HardwareError if TensorFlow has no device with this name (`/GPU:0`)."""
    known = [short_name(logical.name) for logical in tf.config.list_logical_devices()]
    if device not in known:
        raise HardwareError(
            f"TensorFlow has no device {device}", f"the devices of this worker are {', '.join(known)}"
        )


def _threads_of_an_op(spec: RunSpec, rank: int) -> int | None:
    """Return the number of cores for each CPU device that runs at the same time; None: TensorFlow chooses.

    This saves 3 to 7 % of CPU time for two towers on two cores (ResNet-20, ResNet-50), because no op is cut
    into parts that wait for each other.
    """
    width = concurrent_towers(spec, rank) if rank in spec.ranks else 0
    if spec.backend == "gpu" or width < 2:
        return None
    return max(len(os.sched_getaffinity(0)) // width, 1)


def concurrent_towers(spec: RunSpec, rank: int) -> int:
    """Return how many towers run at the same time on a host."""
    return len(tower_groups(spec)[spec.ranks.index(rank)][0])


def tower_groups(spec: RunSpec) -> list[list[list[int]]]:
    """Return the towers of each host, in the groups that run one after another: [host][group][tower].

    All GPUs of a host run at the same time. Logical CPU devices share the cores: more towers than cores would
    queue inside TensorFlow, and their times would be meaningless. So a group has the largest divisor of the
    tower count that does not exceed the usable cores. The next group starts when the previous one has its
    gradients.
    """
    hosts = []
    for rank in spec.ranks:
        towers = [device.tower for device in spec.devices if device.rank == rank]
        width = len(towers)
        if spec.backend == "cpu":
            away = rank != (spec.rank or 0)
            cores = spec.servers[rank].cores if away else len(os.sched_getaffinity(0))
            width = max(n for n in range(1, width + 1) if width % n == 0 and n <= max(cores, 1))
        hosts.append([towers[first : first + width] for first in range(0, len(towers), width)])
    return hosts


# Calls of Python functions in the processes of other hosts: rank 0 runs an op on that host's device. An op
# finds a Python function by a token, and only in the process where it runs. So the other host's server
# registers the answering function before it serves (`server.answers`).
Answering = Callable[..., np.int64 | bytes]
"""Answers a question (bytes) about the arguments (numpy values)."""
_TOKEN = "pyfunc_0"  # token of the first function that a process registers


def register(answering: Answering) -> Any:
    """Let another process's ops on this process's devices call `answering`, while the result is referenced.

    It must be the first Python function that this process passes to TensorFlow.
    """
    with tf.Graph().as_default() as kept:
        op = tf.numpy_function(answering, [""], tf.bool).op
    assert op.get_attr("token") == _TOKEN.encode(), "another function was registered first"
    return kept


def ask_host(device: str, question: str, *given: Any, dtype: Any) -> Any:
    """Ask the server on a device eagerly, and return the answer as a numpy value or bytes."""
    with tf.device(device):
        arguments = [tf.constant(question), *map(tf.convert_to_tensor, given)]
        (answer,) = tf.raw_ops.PyFunc(input=arguments, token=_TOKEN, Tout=[dtype])
        return answer.numpy()
