"""Verdicts of a run on its devices: slow, even, or cannot tell, each with the resolution of the run."""

import msgspec

SLOW, EVEN, CANNOT_TELL = "slow", "even", "cannot tell"
# Chance that a window of an even run reports any device, for all comparisons together.
FALSE_ALARM = 0.001
CONFIDENCE = 1 - FALSE_ALARM
# Slow: at least this is proven. Not measured; chosen because GPUs of one model differ by one or two percent
# as delivered: in the 7gforce table of six GTX 1070, one at 98.83% of the reference must be even, and one at
# 94.54 % slow.
SLOW_PERCENT = 3.0
# Even: a larger difference is excluded.
EVEN_PERCENT = 5.0


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of slow devices, from replaying the recorded steps with these at the pace of their peers."""

    images_per_sec: float  # of the recorded steps, all devices together
    without: float  # of the same steps replayed
    percent: float  # loss as a percentage of `without`


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause for a part of the gap between a slow device and its peers, in percent of pace.

    `how`: "fitted": from how this run's pace varied with the cause; "bounded": by its maximum cost. `percent`
    is then that maximum, and the range starts at 0.
    """

    id: str  # of the rule, see `gputopo.runs.verdict.rules`
    says: str
    how: str
    percent: float  # of the gap; the range is `percent_low` to `percent_high`
    percent_low: float
    percent_high: float


class Causes(msgspec.Struct, frozen=True, kw_only=True):
    """Why a device is slow, as far as the samples of the same seconds show it.

    `not_checked`: ids of causes with missing facts, and the facts. These causes are not excluded.
    """

    says: str
    found: tuple[Cause, ...] = ()  # the main cause first; the shares add up to at most the gap
    unexplained_percent: float = 0.0  # the rest of the gap, in percent of pace
    covered_share: float = 0.0  # share of the gap that the causes explain, 0 to 1
    checked: tuple[str, ...] = ()  # ids of causes whose facts are known
    not_checked: dict[str, str] = {}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one device, or on the whole run if `tower` is None.

    `against`: what it was compared with: "peers" of its kind in the same steps, its own "past" in this run,
    the "expected" speed; None: nothing. `percent_under`: percent by which its pace is lower, as the median
    over the steps; negative: faster. `percent_under_low`, `percent_under_high`: bounds of its confidence
    interval. `resolution_percent`: a larger difference would have been reported with a chance of 95 %.
    `more_steps`: number of steps that would resolve 5 %; None: no number would, or the run does.

    `from_step`, `to_step`: the part of the run in which it was slow. `share_of_steps`: 0 to 1, if it was slow
    in single steps all over the run; it can still be even on average.
    """

    word: str  # "slow", "even", "cannot tell"; `why` is the reason for the latter
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
    steps: int = 0  # number of compared steps
    effective_steps: float | None = None  # independent steps with the same error (noise is correlated)
    from_step: int | None = None
    to_step: int | None = None
    share_of_steps: float | None = None
    cost: Cost | None = None
    causes: Causes | None = None  # why it is slow, None if it is not


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Load of the host while the steps were counted: means over the samples, None if not known.

    `busy`: in words, what kept the host too busy to compare the devices' paces; None: idle enough.
    `may_cost_percent`: if other programs ran next to CPU devices, their maximum cost for one device, in
    percent of its pace.
    """

    samples: int  # number of samples
    other_cpu_share: float | None = None
    run_queue: float | None = None
    cores: int | None = None
    memory_available_share: float | None = None  # the minimum
    swap_bytes_per_s: float | None = None
    busy: str | None = None
    may_cost_percent: float | None = None


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Images/sec that a run should reach, with its range. `source`: the source, as in a sentence."""

    images_per_sec: float
    low: float
    high: float
    source: str


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before a run and used to judge its events.

    `sharing`: for each tower, the towers whose GPUs share a link to the host with it.
    """

    expected: Expected | None = None  # of the run; None: `unexpected` has the reason, if there was a search
    unexpected: str | None = None
    speeds: dict[int, Expected] = {}  # of each tower's device by itself, if the devices are of several models
    sharing: dict[int, tuple[int, ...]] = {}
    memory_mib: dict[str, int] = {}  # of each GPU, by `events.gpu_key`
    networks: dict[int, str] = {}  # problems of the network ports of each host, by rank, in words


SOUND, FAULTY, NOT_JUDGED = "sound", "faulty", "not judged"
AS_PLANNED, OUTSIDE, NOT_SEEN, NOT_CHECKED = "as planned", "outside", "not seen", "not checked"


class HardwareFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of one GPU, or of the host if `gpu` is None, in the samples of a run.

    `rank`, `host`: if a run has several hosts.
    """

    id: str  # of the rule, as in findings
    severity: str  # info, warning or error
    says: str
    gpu: int | None = None


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on the hardware. It does not measure the program's own speed.

    `word`: "faulty": a warning or an error was found; "sound": none was found in what was checked; "not
    judged": no GPU was sampled under load.
    """

    word: str
    says: str
    faults: tuple[HardwareFault, ...] = ()
    samples: int = 0  # number of samples of the GPUs
    loaded: int = 0  # number of samples under load, for the GPU with the fewest
    checked: tuple[str, ...] = ()  # ids of the checks
    not_checked: dict[str, str] = {}  # by id, with the reason


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs on which NVML listed the processes of a program.

    `word`: "as planned": on some of the planned GPUs and no others; "outside": on a GPU that is not planned;
    "not seen": on none; "not checked": NVML does not list them.
    """

    word: str
    says: str
    gpus: tuple[int, ...] = ()  # where it was seen
