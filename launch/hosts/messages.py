"""What the hosts of a training send one another, and how long they wait, in seconds."""

from dataclasses import dataclass
from typing import Any

import msgspec

from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.events import MemoryPeak, Noticed, RankFailed, Sample, Silent

# Without a word from a host. Ours: a dead host is to be named within 15 s, and lost packets of a busy network
# are sent again after 0.2, 0.4, ... 3.2 s (TCP_RTO_MIN of Linux), which is 6.2 s after 5 losses in a row.
SILENT_S = 10.0
RETRY_S = 0.5  # between attempts to reach a rank 0 that is not there yet; not measured
# For which a host that ends by an error lets rank 0 end first, which has 5 s for its worker; not measured
LAST_S = 15.0
EXCUSE_S = 5.0  # for which a host that cannot join tries to reach a rank 0 that is not there; not measured
END_S = 5.0  # for which rank 0 waits at its end until all hosts have heard of it; not measured


@dataclass(frozen=True)
class HostTimeouts:
    """How long rank 0 and the other hosts wait for one another, in seconds; see the constants."""

    silent_s: float = SILENT_S
    every_s: float = 0.5  # between two signs of life, and two looks at silence; not measured
    retry_s: float = RETRY_S
    greeting_s: float = 5.0  # for which a connection may take to prove the secret; not measured
    end_s: float = END_S


PATIENCE = HostTimeouts()

HostEvent = Sample | Noticed | Silent | MemoryPeak | RankFailed
"""What a host reports of itself; the events of training are those of rank 0's worker."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema"):
    pass


class HostStart(_Message, frozen=True, tag="gputopo.start/1"):
    """The host takes part."""

    spec: msgspec.Raw  # JSON of the run's spec
    place: int  # its rank among the hosts that train, as in the spec's devices
    environment: dict[str, str] = {}  # variables to set for its server


class RunEnd(_Message, frozen=True, tag="gputopo.end/1"):
    """The run is over, or the host takes no part; rank 0's last message to it."""

    exit_code: int
    cause: str | None = None  # why it failed, or why the host is refused or not needed
    hint: str = ""  # what to do about that

    @property
    def error(self) -> GputopoError:
        """The same as an error."""
        kind = HardwareError if self.exit_code == ExitCode.HARDWARE else UsageError
        return kind(self.cause or "", self.hint)


Reply = HostStart | RunEnd


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What else is to be known of a host; `interface`, its rate and MTU: on the network of the hosts."""

    environ: dict[str, str] = {}  # CUDA_*
    claimed: dict[int, str] = {}  # by whom, of its GPUs
    cores: int = 1
    memory_bytes: int | None = None
    interface: str | None = None
    rate_gbit_per_s: float | None = None
    mtu_bytes: int | None = None
    programs: dict[str, str] = {}  # for a measurement of the network, by name
    gpus: int = 0  # for that, too


class Joining(_Message, frozen=True, tag="gputopo.joining/1"):
    """A host that comes to the training; a host that is asked without a training answers by it, too."""

    rank: int
    name: str
    version: str  # of gputopo
    address: str = ""  # of its TensorFlow server, as the other hosts reach it
    port: int = 0
    job: str | None = None  # the starter's id of the job, where it gives one
    leader: HostAddress | None = None  # the rank 0 that it was started for
    machine: Machine | None = None  # None where it has no GPU
    asked: dict[str, Any] = {}  # what must be alike on all hosts, by its words: options, versions
    resources: Resources = Resources()
    unable: RunEnd | None = None  # why it cannot join


class Report(_Message, frozen=True, tag="gputopo.report/1"):
    """Sent every `every_s` seconds: the host is there, and what has happened since."""

    sent_s: float  # by its clock
    events: tuple[HostEvent, ...] = ()
