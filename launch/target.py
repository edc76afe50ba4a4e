"""The result of planning a job on a site (`Target`): its devices on one host or several."""

from collections.abc import Mapping
from dataclasses import dataclass

from gputopo.launch.spec.env import program_env, worker_env
from gputopo.launch.spec.host_place import HostPlace, Usable, host_place
from gputopo.values.machine import Machine
from gputopo.values.run.plan import CPU_DEVICES, Plan
from gputopo.values.run.spec import Backend, RunSpec, Server


@dataclass(frozen=True)
class Target:
    """The plan, its machine (None if there is no GPU to plan for), and the backend that runs it.

    `why_cpu`: why it runs on CPU devices, a clause such as "No NVIDIA device"; None on GPUs.
    """

    backend: Backend
    plan: Plan
    machine: Machine | None
    why_cpu: str | None = None
    rehearsal_of: str | None = None  # name of the captured machine
    cpu_devices: int = CPU_DEVICES  # number of devices of a plan without GPUs
    usable: Usable | None = None  # what this process may use on the host
    affinity: bool = True  # whether a run on GPUs uses the CPUs near them
    box: Machine | None = None  # the machine that runs it; None if only the captured machine is known
    others: "tuple[Target, ...]" = ()  # the other hosts of a run, by rank from 1
    servers: tuple[Server, ...] = ()  # of all hosts; empty, like `others`, if there is only one
    memory_bytes: int | None = None  # memory of another host, if known

    @property
    def counted(self) -> int:
        """Number of devices of this host."""
        return len(self.plan.choice.gpus) or self.cpu_devices

    @property
    def host_place(self) -> HostPlace:
        """The CPUs, memory and threads of a run on the plan's GPUs."""
        if self.machine is None or not self.affinity:
            return HostPlace()
        usable = None if self.rehearsal_of is not None else self.usable
        return host_place(self.machine, self.plan.choice.gpus, usable)

    def environment(self, parent: Mapping[str, str], spec: RunSpec | None) -> dict[str, str]:
        """Return the environment of the worker, or of the user's program if `spec` is None."""
        if spec is not None:
            return worker_env(parent, spec, self.plan.environment, self.host_place)
        if self.backend == "cpu" and self.rehearsal_of is None:
            return program_env(parent, None)
        return program_env(parent, self.plan.environment, self.host_place)
