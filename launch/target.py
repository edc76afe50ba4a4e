"""The result of planning a job on a site (`Target`): its devices on one host or several."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gputopo.launch.spec.env import program_env, worker_env
from gputopo.launch.spec.host_place import HostPlace, place_near_gpus
from gputopo.launch.supervise.cgroup import usable_cpus
from gputopo.values.machine import Machine
from gputopo.values.run.plan import CPU_DEVICES, Plan
from gputopo.values.run.spec import Backend, RunSpec, Server


@dataclass
class TargetSite:
    """What a target needs of its site. `rehearsal_of`: name of the captured machine."""

    machine: Machine
    rehearsal_of: str | None = field(default=None, kw_only=True)
    affinity: bool = field(default=True, kw_only=True)  # whether a run on GPUs uses the CPUs near them


@dataclass(frozen=True)
class Target:
    """A plan for a site, and the backend that runs it.

    `why_cpu`: why it runs on CPU devices, a clause such as "No NVIDIA device"; None on GPUs.
    """

    backend: Backend
    site: TargetSite
    plan: Plan
    why_cpu: str | None = None
    cpu_devices: int = CPU_DEVICES  # number of devices of a plan without GPUs
    others: "tuple[Target, ...]" = ()  # the other hosts of a run, by rank from 1
    servers: tuple[Server, ...] = ()  # of all hosts; empty, like `others`, if there is only one

    @property
    def hosts(self) -> "tuple[Target, ...]":
        """This host and the other hosts of a run, by rank."""
        return (self, *self.others)

    @property
    def machine(self) -> Machine | None:
        """The machine of the planned GPUs; None if there is no GPU to plan for."""
        return self.site.machine if self.plan.choice.gpus else None

    @property
    def rehearsal_of(self) -> str | None:
        """The name of the captured machine; None if the machine itself runs the plan."""
        return self.site.rehearsal_of

    @property
    def counted(self) -> int:
        """Number of devices of this host."""
        return len(self.plan.choice.gpus) or self.cpu_devices

    @property
    def host_place(self) -> HostPlace:
        """The CPUs, memory and threads of a run on the plan's GPUs."""
        if self.machine is None or not self.site.affinity:
            return HostPlace()
        usable = None if self.rehearsal_of is not None else usable_cpus()
        return place_near_gpus(self.machine, self.plan.choice.gpus, usable)

    def environment(self, parent: Mapping[str, str], spec: RunSpec | None) -> dict[str, str]:
        """Return the environment of the worker, or of the user's program if `spec` is None."""
        if spec is not None:
            return worker_env(parent, spec, self.plan.environment, self.host_place)
        if self.backend == "cpu" and self.rehearsal_of is None:
            return program_env(parent, None)
        return program_env(parent, self.plan.environment, self.host_place)
