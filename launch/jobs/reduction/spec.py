"""The job of a process that times one reduction, and the table of all methods.

To add a method: its name in `gputopo.values.run.all_reduce`, and if its algorithm is new, a function in
`gputopo.launch.train.placement.methods.ALGORITHMS`. This module does not load TensorFlow.
"""

import msgspec

from gputopo.launch.spec.run_spec import Backend, RunSpec
from gputopo.topology.reduction_groups import Groups
from gputopo.values.run import all_reduce
from gputopo.values.run.all_reduce import MEANINGS, NAMES, Reduction

Options = dict[str, str | int | Groups]
_ALSO_TIMED = ("ring#2", "psgpu#2")


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One method: a name for users, the algorithm that builds its ops, and that algorithm's options.

    `algorithm` is a key of `ALGORITHMS`, `options` are its keyword arguments.
    """

    name: str
    algorithm: str
    says: str
    options: Options = {}

    def why_not(self, backend: Backend, devices: int) -> str | None:
        """Why it cannot be used there, None if it can."""
        found = all_reduce.parse(self.name).why_not(backend, devices)
        return None if found is None else found[0]


def options_of(asked: Reduction, groups: Groups = ()) -> tuple[str, Options]:
    """Return the algorithm of a reduction, and its options. `groups`: of towers, for the hierarchical one."""
    if asked.name == "collective":
        return "collective", {"hint": "ring"}
    if asked.name == "nccl":
        return "collective", {"hint": "nccl"}
    if asked.name == "hierarchical":
        return "hierarchical", {"groups": groups}
    return asked.name, {} if asked.parts == 1 else {"parts": asked.parts}


def require(name: str, groups: Groups = ()) -> Method:
    """Return the method of that name (`gputopo.values.run.all_reduce`). UsageError names the nearest."""
    asked = all_reduce.parse(name)
    algorithm, options = options_of(asked, groups)
    return Method(name=asked.written, algorithm=algorithm, says=MEANINGS[asked.name], options=options)


METHODS: dict[str, Method] = {name: require(name) for name in (*NAMES, *_ALSO_TIMED)}


class ReductionJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one process times. Of `run` its model, devices and backend count.

    The worker's events: PhaseBegun for what comes next, ModelBuilt with the bytes of one replica's gradients,
    a Step per call (warm-up below 1), first with the reduction, then, after PhaseBegun(EMPTY_CALLS), without;
    RankFailed of the kinds below for a refusal.
    """

    run: RunSpec
    method: Method
    repeats: int
    warm_up: int


EMPTY_CALLS = "calls without a reduction"
REFUSED = "refused"  # this method cannot be measured here
REFUSED_FOR_ALL = "refused for all"  # nor can any other
WRONG_SUM = "wrong sum"  # it ran, and its sums were wrong
