"""What the launchers of one training's hosts send each other: JSON bodies of HTTP requests.

| request of a host           | body               | answer                                               |
|-----------------------------|--------------------|------------------------------------------------------|
| `POST /join`                | `Joining`          | a `Reply`, or `Waiting`: ask again                   |
| `POST /join`                | `Unable`           | anything: rank 0 has read it                         |
| `POST /ranks/<rank>/events` | events, one a line | `Taken`, with `End` once the run is over, for it too |
| `POST /ranks/<rank>/result` | what was asked for | `Taken`                                              |

The query of events has `first`, the number of the first one, `sent`, the host's clock, and `serves`, the
number of the `Start` by which its server runs: as long as rank 0 has a newer one, `Taken` has that.

Every request has a token in its `Authorization` header that the host made up when it joined: only who joined
can go on for that rank. What is refused is answered by 403 and `Refused`, what cannot be read by 400.
"""

from typing import Any

import msgspec

from gputopo.launch.recorded.reported import StepsReported
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.events import MemoryPeak, Noticed, RankFailed, RunFinished, Sample, Silent

JOIN_PATH = "/join"
MAX_BODY_BYTES = 4 * 1024 * 1024  # the machine of a host with 16 GPUs and all samples is below 1 MiB

GuestEvent = Sample | Noticed | Silent | MemoryPeak | RankFailed | RunFinished | StepsReported
"""What a host reports of itself; the events of training are those of rank 0's worker.

RunFinished: a program of the user that each host has has ended there. StepsReported: what that reports.
"""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema"):
    pass


class Joining(_Message, frozen=True, tag="gputopo.joining/1"):
    """A host that comes to the training.

    `rank`, `name` (host name), `version` (of gputopo): of this host. `address`, `port`: of its TensorFlow
    server, as the other hosts reach it. `job`: the starter's id of the job, where it gives one. `machine`:
    None where it has no GPU. `asked`: options by name (`batch_size`) as they were typed, without those that
    may differ between hosts. `resources`: what else a plan needs of this host, such as `cpu_devices`.
    """

    rank: int
    name: str
    version: str
    address: str
    port: int
    job: str | None = None
    machine: Machine | None = None
    asked: dict[str, Any] = {}
    resources: dict[str, Any] = {}


class Unable(_Message, frozen=True, tag="gputopo.unable/1"):
    """A host that cannot join: what is wrong and what to do, as in GputopoError; else as Joining."""

    rank: int
    name: str
    version: str
    what: str
    hint: str
    exit_code: int
    job: str | None = None


class Waiting(_Message, frozen=True, tag="gputopo.waiting/1"):
    """Rank 0 has not decided yet: the other hosts are not there, or are being planned."""


class Start(_Message, frozen=True, tag="gputopo.start/1"):
    """The host takes part. `spec`: JSON of the run's spec. `environment`: variables to set for its server.

    `place`: its rank among the hosts that train, by which the spec's devices name it; None: its own.
    `number`: 0 for the first; a host that gets another one ends its server and starts one by that.
    """

    spec: msgspec.Raw
    environment: dict[str, str] = {}
    place: int | None = None
    number: int = 0


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


Reply = Start | Unused | Refused


class End(_Message, frozen=True, tag="gputopo.end/1"):
    """The run is over. `cause`: why it failed, None where it did not; `hint`: what to do about that."""

    exit_code: int
    cause: str | None = None
    hint: str = ""


class Taken(_Message, frozen=True, tag="gputopo.taken/1"):
    """`events`: how many of this host's events have come, counted from the first.

    `end`: the run is over, or goes on without this host. `start`: its server is to be started anew by that.
    """

    events: int
    end: End | None = None
    start: Start | None = None


def events_path(rank: int) -> str:
    """Return where the events of a rank are posted."""
    return f"/ranks/{rank}/events"


def result_path(rank: int) -> str:
    """Return where the result of a rank is posted."""
    return f"/ranks/{rank}/result"
