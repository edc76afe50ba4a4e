"""The messages between the hosts of a training, and how long the hosts wait, in seconds."""

from dataclasses import dataclass
from typing import Any

import msgspec

from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.events import MemoryPeak, Noticed, RankFailed, Sample, Silent

# Time without a message before a host is lost. Not measured; chosen because a dead host should be reported
# within 15 s. Lost packets of a busy network are sent again after 0.2, 0.4, ... 3.2 s (TCP_RTO_MIN of Linux),
# which is 6.2 s after 5 losses in a row.
SILENT_S = 10.0
RETRY_S = 0.5  # between attempts to reach a rank 0 that has not started yet; not measured
# How long a host that ends with an error waits for rank 0 to end first, which gives its worker 5 s; not
# measured.
LAST_S = 15.0
EXCUSE_S = 5.0  # how long a host that cannot join tries to reach rank 0; not measured
END_S = 5.0  # how long rank 0 waits at its end until all hosts have heard of it; not measured


@dataclass(frozen=True)
class HostTimeouts:
    """How long rank 0 and the other hosts wait for each other, in seconds; see the constants."""

    silent_s: float = SILENT_S
    every_s: float = 0.5  # between two heartbeats, and between two checks for silence; not measured
    retry_s: float = RETRY_S
    greeting_s: float = 5.0  # limit for proving the secret on a connection; not measured
    end_s: float = END_S


PATIENCE = HostTimeouts()

HostEvent = Sample | Noticed | Silent | MemoryPeak | RankFailed
"""An event that a host reports about itself; rank 0's worker reports the events of training."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema"):
    pass


class HostStart(_Message, frozen=True, tag="gputopo.start/1"):
    """The host takes part."""

    spec: msgspec.Raw  # JSON of the run's spec
    place: int  # its rank among the hosts that train, as in the devices of the spec
    environment: dict[str, str] = {}  # variables to set for its server


class RunEnd(_Message, frozen=True, tag="gputopo.end/1"):
    """The run is over, or the host takes no part; this is rank 0's last message to the host."""

    exit_code: int
    cause: str | None = None  # why it failed, or why the host is refused or not needed
    hint: str = ""  # what to do about the cause

    @property
    def error(self) -> GputopoError:
        """The cause as an error."""
        kind = HardwareError if self.exit_code == ExitCode.HARDWARE else UsageError
        return kind(self.cause or "", self.hint)


Reply = HostStart | RunEnd


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Other properties of a host. `interface`, its rate and MTU: on the network of the hosts."""

    environ: dict[str, str] = {}  # CUDA_*
    claimed: dict[int, str] = {}  # GPU index to the holder of its claim
    cores: int = 1
    interface: str | None = None
    rate_gbit_per_s: float | None = None
    mtu_bytes: int | None = None
    programs: dict[str, str] = {}  # for measuring the network: name to path
    gpus: int = 0  # for measuring the network


class Joining(_Message, frozen=True, tag="gputopo.joining/1"):
    """A host joins the training; a host that is queried without a training replies with this message, too."""

    rank: int
    name: str
    version: str  # of gputopo
    address: str = ""  # of its TensorFlow server, as the other hosts see it
    port: int = 0
    job: str | None = None  # the starter's id of the job, if it sets one
    leader: HostAddress | None = None  # the rank 0 for which it was started
    machine: Machine | None = None  # None if it has no GPU
    asked: dict[str, Any] = {}  # options and versions that must be the same on all hosts, by name
    resources: Resources = Resources()
    unable: RunEnd | None = None  # why it cannot join


class Report(_Message, frozen=True, tag="gputopo.report/1"):
    """The heartbeat of a host, sent every `every_s` seconds, with the events since the last one."""

    sent_s: float  # by the host's clock
    events: tuple[HostEvent, ...] = ()
