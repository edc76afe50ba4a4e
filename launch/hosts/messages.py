"""What the hosts of a training send one another, and how long they wait, in seconds."""

from dataclasses import dataclass
from typing import Any

import msgspec

from gputopo.launch.user_program.steps import StepsReported
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.events import MemoryPeak, Noticed, RankFailed, RunFinished, Sample, Silent

# Without a word from a host. Ours: a dead host is to be named within 15 s, and lost packets of a busy network
# are sent again after 0.2, 0.4, ... 3.2 s (TCP_RTO_MIN of Linux), which is 6.2 s after 5 losses in a row.
SILENT_S = 10.0
EVERY_S = 1.0  # between two reports of a host; not measured
RETRY_S = 0.5  # between attempts to reach a rank 0 that is not there yet; not measured
GREETING_S = 5.0  # for which a connection may take to prove the secret; not measured
END_S = 5.0  # for which rank 0 waits at its end until all hosts have heard of it; not measured
# For which a host that ends by an error lets rank 0 end first, which has 5 s for its worker; not measured
LAST_S = 15.0
EXCUSE_S = 5.0  # for which a host that cannot join tries to reach a rank 0 that is not there; not measured
LOOK_S = 0.25  # between two looks at the hosts' silence; not measured


@dataclass(frozen=True)
class HostTimeouts:
    """How long rank 0 and the other hosts wait for one another, in seconds; see the constants."""

    silent_s: float = SILENT_S
    every_s: float = EVERY_S
    retry_s: float = RETRY_S
    greeting_s: float = GREETING_S
    end_s: float = END_S
    look_s: float = LOOK_S


PATIENCE = HostTimeouts()


class Silence:
    """Seconds for which another host has been silent, of those in which this one was not stopped itself.

    Batch systems suspend jobs (SIGSTOP): a look that comes later than `expected_s` after the one before, or
    after the last word of the other host, counts for `expected_s` only. `now_s`: a monotonic clock.
    """

    def __init__(self, now_s: float, *, expected_s: float) -> None:
        self._expected_s = expected_s
        self._looked_s = now_s
        self.seconds = 0.0

    def heard(self, now_s: float) -> None:
        """Note that the other host was heard of."""
        self._looked_s, self.seconds = now_s, 0.0

    def look(self, now_s: float) -> float:
        """Return the seconds of silence until now."""
        self.seconds += min(max(0.0, now_s - self._looked_s), self._expected_s)
        self._looked_s = now_s
        return self.seconds


HostEvent = Sample | Noticed | Silent | MemoryPeak | RankFailed | RunFinished | StepsReported
"""What a host reports of itself; the events of training are those of rank 0's worker.

RunFinished: a program of the user that each host has has ended there. StepsReported: what that reports.
"""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema"):
    pass


class Joining(_Message, frozen=True, tag="gputopo.joining/1"):
    """A host that comes to the training."""

    rank: int
    name: str
    version: str  # of gputopo
    address: str  # of its TensorFlow server, as the other hosts reach it
    port: int
    job: str | None = None  # the starter's id of the job, where it gives one
    machine: Machine | None = None  # None where it has no GPU
    asked: dict[str, Any] = {}  # options as typed, without those that may differ between hosts
    resources: dict[str, Any] = {}  # what else a plan needs of this host, such as `cpu_devices`


class Unable(_Message, frozen=True, tag="gputopo.unable/1"):
    """A host that cannot join: what is wrong and what to do, as in GputopoError; else as Joining."""

    rank: int
    name: str
    version: str
    what: str
    hint: str
    exit_code: int
    job: str | None = None


class HostStart(_Message, frozen=True, tag="gputopo.start/1"):
    """The host takes part."""

    spec: msgspec.Raw  # JSON of the run's spec
    environment: dict[str, str] = {}  # variables to set for its server
    place: int | None = None  # its rank among the hosts that train, as in the spec's devices; None: its own
    number: int = 0  # 0 for the first; a host that gets another one ends its server and starts one by that


class Unused(_Message, frozen=True, tag="gputopo.unused/1"):
    """The plan does not need this host."""

    why: str


class Refused(_Message, frozen=True, tag="gputopo.refused/1"):
    """The host cannot take part: what is wrong and what to do, as in GputopoError."""

    what: str
    hint: str
    exit_code: int

    @property
    def error(self) -> GputopoError:
        """The same as an error."""
        kind = HardwareError if self.exit_code == ExitCode.HARDWARE else UsageError
        return kind(self.what, self.hint)


Reply = HostStart | Unused | Refused


class RunEnd(_Message, frozen=True, tag="gputopo.end/1"):
    """The run is over."""

    exit_code: int
    cause: str | None = None  # why it failed, None where it did not
    hint: str = ""  # what to do about that


class Report(_Message, frozen=True, tag="gputopo.report/1"):
    """Sent each second: the host is there, and what has happened since."""

    sent_s: float  # by its clock
    serves: int = 0  # number of the Start by which its server runs
    events: tuple[HostEvent, ...] = ()


class Alive(_Message, frozen=True, tag="gputopo.alive/1"):
    """The answer to a report."""


class Heard(_Message, frozen=True, tag="gputopo.heard/1"):
    """The host has rank 0's last message, after which it reports no more."""


FromHost = Joining | Unable | Report | Heard
FromLeader = HostStart | Unused | Refused | RunEnd | Alive
