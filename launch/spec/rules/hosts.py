"""Rules of a training on several hosts. Pure."""

from collections import Counter
from collections.abc import Callable

from gputopo.launch.spec.rules.rule import Rule, replaced, to
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.spec.strategy_names import MULTI_WORKER, read
from gputopo.values.run import all_reduce

OF_ONE_PROCESS = ("nccl_op",)


def _on_several(when: Callable[[RunSpec], bool]) -> Callable[[RunSpec], bool]:
    return lambda spec: bool(spec.servers) and when(spec)


def _of_one_process(spec: RunSpec) -> bool:
    return spec.all_reduce is not None and all_reduce.parse(spec.all_reduce).name in OF_ONE_PROCESS


def is_multi_worker(spec: RunSpec) -> bool:
    """Whether each host trains with a process of its own, by a strategy of tf.distribute."""
    return spec.strategy is not None and read(spec.strategy).kind == MULTI_WORKER


def _on_cpus(spec: RunSpec) -> bool:
    return spec.backend == "cpu" and spec.rehearsal_of is None  # of GPUs, whose start is shown


def _devices_of_hosts(spec: RunSpec) -> list[int]:
    return list(Counter(device.rank for device in spec.devices).values())


HOSTS_RULES: tuple[Rule, ...] = (
    Rule(
        _on_several(lambda spec: spec.method is not None),
        "--method {spec.method} is for one host, and this is a training of several",
        "leave --method out, or add --num-hosts 1",
        to(method=None),
    ),
    Rule(
        _on_several(lambda spec: spec.strategy is not None and not is_multi_worker(spec)),
        "--strategy {spec.strategy} is for one host, and this is a training of several",
        "use --strategy multi_worker_mirrored, leave --strategy out, or add --num-hosts 1",
        to(strategy=None),
    ),
    Rule(
        lambda spec: is_multi_worker(spec) and not spec.servers,
        "--strategy {spec.strategy} is for several hosts, and this is a training of one",
        "use --strategy mirrored, or start it on several hosts: gputopo explain hosts",
        to(strategy="mirrored"),
    ),
    Rule(
        lambda spec: is_multi_worker(spec) and _on_cpus(spec) and max(_devices_of_hosts(spec)) > 1,
        "--strategy {spec.strategy} uses one CPU device of each host, as TensorFlow's strategy does",
        "use --num-gpus with the number of hosts, or leave --strategy out",
        to(strategy=None),
    ),
    Rule(
        lambda spec: is_multi_worker(spec) and len(set(_devices_of_hosts(spec))) > 1,
        "--strategy {spec.strategy} needs as many GPUs on each host, and the hosts have unequal numbers",
        "use --num-gpus with a multiple of the number of hosts, or leave --strategy out",
        to(strategy=None),
    ),
    Rule(
        _on_several(_of_one_process),
        "--all-reduce {spec.all_reduce} is within one process, and each host of this training has its own",
        "use --all-reduce hierarchical, or add --num-hosts 1",
        lambda spec: replaced(spec, all_reduce="hierarchical"),
    ),
)
