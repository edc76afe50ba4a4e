"""Verdicts of a run on its devices: slow, even, or cannot tell, each with what the run could resolve."""

from collections.abc import Mapping

import msgspec

SLOW, EVEN, CANNOT_TELL = "slow", "even", "cannot tell"
COMPUTE, WEIGHTS = "compute", "weights"  # parts of a step that are compared
# Chance that a window of an even run names any device, for all comparisons together.
FALSE_ALARM = 0.001
CONFIDENCE = 1 - FALSE_ALARM
# Slow: at least so much is proven. GPUs of one model differ by one or two percent as they come from the
# factory: in the 7gforce table of six GTX 1070 one at 98.83% of the reference counts as even, one at 94.54 %
# as slow. Ours, between the two.
SLOW_PERCENT = 3.0
# Even: more than so much is excluded.
EVEN_PERCENT = 5.0


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What slow devices cost, from the recorded steps replayed with them at the pace of their peers."""

    images_per_sec: float  # of the recorded steps, all devices together
    without: float  # of the same steps replayed
    percent: float  # of `without` that is lost


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What explains a part of the gap between a slow device and its peers, in percent of pace.

    `how`: "fitted" to how this run's pace varied with it, or "bounded" by the most that it can cost: then
    `percent` is that most, and the range begins at 0.
    """

    id: str  # of the rule, see `gputopo.runs.verdict.rules`
    says: str
    how: str
    percent: float  # of the gap, with its range `percent_low` to `percent_high`
    percent_low: float
    percent_high: float


class Causes(msgspec.Struct, frozen=True, kw_only=True):
    """Why a device is slow, as far as the samples of the same seconds show it.

    `not_checked`: ids of causes whose facts are missing, and which: these are not excluded.
    """

    says: str
    found: tuple[Cause, ...] = ()  # what explains most first; their shares add up to the gap at most
    unexplained_percent: float = 0.0  # the rest of the gap, in percent of pace
    covered_share: float = 0.0  # 0 to 1, of the gap
    checked: tuple[str, ...] = ()  # ids of causes with their facts
    not_checked: dict[str, str] = {}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one device, or for the whole run where `tower` is None.

    `against`: what it was compared with: "peers" of its kind in the same steps, its own "past" in this run,
    the "expected" speed; None: with nothing. `percent_under`: percent by which its pace is below that, the
    median over the steps; negative: faster. `percent_under_low`, `percent_under_high`: bounds of its
    confidence interval. `resolution_percent`: a difference above this would have been named with a chance of
    95 %. `more_steps`: that would resolve 5 %; None: no number of steps would, or the run resolves it.
    `from_step`, `to_step`: where it was slow in a part of the run only. `share_of_steps`: 0 to 1, where it
    was slow in single steps all over the run; so may one be that is even on average.
    """

    word: str  # "slow", "even", "cannot tell"; `why` is the reason of the last
    says: str
    why: str | None = None
    tower: int | None = None
    gpu: int | None = None
    against: str | None = None
    part: str | None = None  # "compute" or "weights", None for both
    percent_under: float | None = None
    percent_under_low: float | None = None
    percent_under_high: float | None = None
    resolution_percent: float | None = None
    more_steps: int | None = None
    steps: int = 0  # compared
    effective_steps: float | None = None  # independent ones that weigh as much (noise is correlated)
    from_step: int | None = None
    to_step: int | None = None
    share_of_steps: float | None = None
    cost: Cost | None = None
    causes: Causes | None = None  # why it is slow, None where it is not


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Load of the host while the steps were counted: means over the samples, None where not known.

    `busy`: in words, what kept the host busy so much that the devices' paces cannot be compared; None: idle
    enough. `may_cost_percent`: where that is other programs beside CPU devices, the most that they could have
    cost one device, in percent of its pace.
    """

    samples: int  # how many there are
    other_cpu_share: float | None = None
    run_queue: float | None = None
    cores: int | None = None
    memory_available_share: float | None = None  # the minimum
    swap_bytes_per_s: float | None = None
    busy: str | None = None
    may_cost_percent: float | None = None


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Images/sec that a run should reach, with its range. `source`: where from, as in a sentence."""

    images_per_sec: float
    low: float
    high: float
    source: str


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before a run, beside which its events are judged.

    `sharing`: towers whose GPUs share a link to the host with that of a tower.
    """

    expected: Expected | None = None  # its speed; None: `unexpected` has the reason, if it was looked for
    unexpected: str | None = None
    speeds: dict[int, Expected] = {}  # of each tower's device alone, where the devices are of several models
    sharing: dict[int, tuple[int, ...]] = {}
    memory_mib: dict[str, int] = {}  # of each GPU, by `events.gpu_key`
    networks: dict[int, str] = {}  # what is wrong with the network ports of a host, by rank, in words

    def of_towers(self, moved: Mapping[int, int]) -> "Known":
        """Return what is known of some of the towers, by their new numbers; nothing of their joint speed."""
        return Known(
            speeds={moved[tower]: speed for tower, speed in self.speeds.items() if tower in moved},
            sharing={
                moved[tower]: tuple(moved[one] for one in others if one in moved)
                for tower, others in self.sharing.items()
                if tower in moved
            },
            memory_mib=self.memory_mib,
            networks=self.networks,
        )


SOUND, FAULTY, NOT_JUDGED = "sound", "faulty", "not judged"
AS_PLANNED, OUTSIDE, NOT_SEEN, NOT_CHECKED = "as planned", "outside", "not seen", "not checked"


class HardwareFault(msgspec.Struct, frozen=True, kw_only=True):
    """What the samples of a run show of one GPU, or of the host where `gpu` is None.

    `rank`, `host`: of a run on several hosts.
    """

    id: str  # of the rule, as of findings
    severity: str  # info, warning or error
    says: str
    gpu: int | None = None
    rank: int = 0
    host: str | None = None


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on the hardware: nothing here is measured of the program's own speed.

    `word`: "faulty": a warning or an error was found; "sound": none was, in what was checked; "not judged":
    no GPU was sampled under load.
    """

    word: str
    says: str
    faults: tuple[HardwareFault, ...] = ()
    samples: int = 0  # of the GPUs
    loaded: int = 0  # those of each GPU under load, the fewest
    checked: tuple[str, ...] = ()  # ids of the checks
    not_checked: dict[str, str] = {}  # by id, why


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Where NVML listed the processes of a program.

    `word`: "as planned": on some of the planned GPUs and on no other; "outside": on one that is not planned;
    "not seen": on none; "not checked": NVML does not list them. Of several hosts the worst.
    """

    word: str
    says: str
    gpus: tuple[int, ...] = ()  # those that it was seen on
    by_host: dict[str, tuple[int, ...]] = {}  # the GPUs of each
