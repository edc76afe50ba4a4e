"""Verdicts of a run on its hardware from the samples alone, and on the GPUs that a program really used."""

import msgspec

SOUND, FAULTY, NOT_JUDGED = "sound", "faulty", "not judged"
AS_PLANNED, OUTSIDE, NOT_SEEN, NOT_CHECKED = "as planned", "outside", "not seen", "not checked"


class HardwareFault(msgspec.Struct, frozen=True, kw_only=True):
    """What the samples of a run show of one GPU, or of the host where `gpu` is None.

    `id`: of the check, see `gputopo.runs.hardware.checks`. `severity`: info, warning or error. `rank`,
    `host`: of a run on several hosts.
    """

    id: str
    severity: str
    says: str
    gpu: int | None = None
    rank: int = 0
    host: str | None = None


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on the hardware: nothing here is measured of the program's own speed.

    `word`: "faulty": a warning or an error was found; "sound": none was, in what was checked; "not judged":
    no GPU was sampled under load. `samples`: of the GPUs; `loaded`: those of each GPU under load, the fewest.
    `checked`: ids of the checks; `not_checked`: by id, why.
    """

    word: str
    says: str
    faults: tuple[HardwareFault, ...] = ()
    samples: int = 0
    loaded: int = 0
    checked: tuple[str, ...] = ()
    not_checked: dict[str, str] = {}


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Where NVML listed the processes of a program. `gpus`: those that it was seen on.

    `word`: "as planned": on some of the planned GPUs and on no other; "outside": on one that is not planned;
    "not seen": on none; "not checked": NVML does not list them. Of several hosts the worst; `by_host`: the
    GPUs of each.
    """

    word: str
    says: str
    gpus: tuple[int, ...] = ()
    by_host: dict[str, tuple[int, ...]] = {}
