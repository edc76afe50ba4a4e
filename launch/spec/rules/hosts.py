"""Rules of a training on several hosts. Pure."""

from collections.abc import Callable

from gputopo.launch.spec.rules.rule import Rule, replaced, to
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.run import all_reduce

OF_ONE_PROCESS = ("nccl_op",)


def _on_several(when: Callable[[RunSpec], bool]) -> Callable[[RunSpec], bool]:
    return lambda spec: bool(spec.servers) and when(spec)


def _of_one_process(spec: RunSpec) -> bool:
    return spec.all_reduce is not None and all_reduce.parse(spec.all_reduce).name in OF_ONE_PROCESS


HOSTS_RULES: tuple[Rule, ...] = (
    Rule(
        _on_several(lambda spec: spec.method is not None),
        "--method {spec.method} is for one host, and this is a training of several",
        "leave --method out, or add --num-hosts 1",
        to(method=None),
    ),
    Rule(
        _on_several(lambda spec: spec.strategy is not None),
        "--strategy {spec.strategy} is for one host, and this is a training of several",
        "leave --strategy out, or add --num-hosts 1",
        to(strategy=None),
    ),
    Rule(
        _on_several(_of_one_process),
        "--all-reduce {spec.all_reduce} is within one process, and each host of this training has its own",
        "use --all-reduce hierarchical, or add --num-hosts 1",
        lambda spec: replaced(spec, all_reduce="hierarchical"),
    ),
)
