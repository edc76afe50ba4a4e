"""Documents of several runs: a screen (`gputopo.screen/1`) and a sweep (`gputopo.sweep/1`)."""

from statistics import median
from typing import Any, Literal

import msgspec

from gputopo.values.run.batches import BatchSize
from gputopo.values.run.result import Result
from gputopo.values.run.verdict import SLOW, Causes, Verdict

Kind = Literal["alone", "independent", "together", "pair"]


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """What a run shows of one GPU: medians; None: not reported. Percent: of its maximum.

    `throttled_power`, `throttled_thermal`, `throttled_hardware`: shares of the time, 0 to 1.
    """

    graphics_mhz: float | None = None
    graphics_percent: float | None = None
    memory_mhz: float | None = None
    memory_percent: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    pcie_gen: float | None = None
    pcie_width: float | None = None
    throttled_power: float | None = None
    throttled_thermal: float | None = None
    throttled_hardware: float | None = None
    link_gb_per_s: float | None = None  # data rate of the PCIe link in one direction
    other_processes: float | None = None  # on the GPU
    host_cpu: float | None = None  # share of the CPU that other programs took where no core was left
    host_swap: float | None = None  # share of the time in which the host swapped
    weights_share: float | None = None  # of a step, in which it waited for weights


class InRun(msgspec.Struct, frozen=True, kw_only=True):
    """One device in a run.

    `verdict`: of the run, which compares its devices step by step; None in a run of one.
    """

    number: int  # index of the GPU, or of the CPU device
    images_per_sec: float | None = None  # its own pace
    reading: GpuReading = GpuReading()
    verdict: Verdict | None = None


class ScreenRun(msgspec.Struct, frozen=True, kw_only=True):
    """One short run.

    `kind`: one device "alone", all of them with nothing exchanged ("independent"), all in the plan's mode
    ("together"), or a "pair" in it.
    """

    kind: Kind
    round: int
    mode: str
    folder: str  # of the run, within that of the screen
    devices: tuple[InRun, ...]
    images_per_sec: float | None = None  # median of all devices together
    noise: float | None = None  # standard error of it, as a share of it
    failure: str | None = None  # why there is neither
    busy: str | None = None  # what kept the host busy, so that its speed is not reliable


class Under(msgspec.Struct, frozen=True, kw_only=True):
    """Percent by which a device is below another, or its own past; negative: above. `low`, `high`: bounds of
    the 95 % confidence interval; None: too few runs.
    """

    percent: float
    low: float | None = None
    high: float | None = None


class ScreenDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device by all runs."""

    number: int
    name: str | None = None
    alone: float | None = None  # images/sec, the median of its rounds; None: none could be run
    rounds: int = 0
    percent_of_best: float | None = None
    at_once: float | None = None  # its pace in the run of all with nothing exchanged
    together: float | None = None  # in the plan's mode
    reading: GpuReading = GpuReading()
    word: str  # slow, even, or cannot tell, against `peer`, the middle one of the others of its kind
    says: str  # in a sentence
    peer: int | None = None
    under: Under | None = None
    causes: Causes | None = None  # why a slow one is slow, each with its share of `under`
    explained_percent: float | None = None  # their sum
    unexplained_percent: float | None = None  # the rest
    since: Under | None = None  # below the last screen of this machine
    slower: bool = False  # beyond the noise
    changes: tuple[str, ...] = ()  # what is different from it, in words
    failure: str | None = None

    @property
    def is_outlier(self) -> bool:
        """Whether it is slow, or slower than in the last screen."""
        return self.word == SLOW or self.slower


class Screen(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.screen/1"):
    """What was screened."""

    model: str
    batch_size: BatchSize
    backend: Literal["cpu", "gpu"]
    says: tuple[str, ...]  # for every output
    devices: tuple[ScreenDevice, ...]
    runs: tuple[ScreenRun, ...]
    seconds: float
    quick: bool
    complete: bool  # no signal and no limit of time left out a run
    fingerprint: str | None = None
    last: str | None = None  # folder of the screen that `since` compares with


CellState = Literal["pending", "running", "done", "failed", "refused", "left_out"]
"""`refused`: its options do not go together, or not here; `left_out`: it makes no sense on this machine."""
# Within the folder of a sweep: the runs, the manifest, the examples that were drawn for its cells.
FOLDER, MANIFEST, EXAMPLES = "cells", "sweep.json", "data"
# Within the folder of a run or a screen: its short runs.
AUTOTUNE_RUNS, SCREEN_RUNS = "autotune", "screen"
BY_TIME = "time"  # ended by its time budget
FALLBACK_S = 60.0  # of a cell of which nothing is known yet


class SweepCell(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep.

    `options`: those of `gputopo run`, by name as typed (`variable_update`), True for a flag; `data_dir` may
    be `made:imagenet` or `made:cifar10`: drawn images of gputopo make-data. `other_cpu_share`: of all cores,
    by other processes, the higher of before and during the cell.
    """

    number: int  # from 1, in the order of the matrix
    name: str  # of its folder
    table: str  # the table of the matrix that it is of
    options: dict[str, Any]
    repeat: int = 1  # from 1
    state: CellState = "pending"
    reason: str | None = None  # why it failed, was refused or left out
    notes: tuple[str, ...] = ()  # what was changed for this machine
    mode: str | None = None  # the placement that was planned (`mode_words`), or ran instead
    gpus: tuple[int, ...] = ()  # of the plan, in tower order, none on CPU devices
    devices: int | None = None  # their number
    counted_s: float | None = None  # seconds of its counted steps, None: as the options say
    predicted_s: float | None = None  # of the whole cell, the start of TensorFlow included; None: not known
    began_at: float | None = None
    seconds: float | None = None  # measured
    images_per_sec: float | None = None  # median of all devices together, of `steps` counted steps
    steps: int | None = None
    noise: float | None = None  # standard error of it, as a share of it; None: of fewer than two steps
    other_cpu_share: float | None = None
    beside_other_work: bool = False  # that is too much for a comparison
    temperature_c: float | None = None  # of the hottest GPU at its start

    @property
    def folder(self) -> str:
        """Folder of its run, within that of the sweep."""
        return f"{FOLDER}/{self.name}"

    @property
    def ran(self) -> bool:
        """Whether it ran to its end, well or not."""
        return self.state in ("done", "failed")


class Sweep(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.sweep/1"):
    """The manifest of a sweep.

    `defaults`: of `gputopo run`, those that no machine changes, which cells without the option have.
    `excluded`, `duplicates`: how many the matrix excludes without a reason, and equal ones that were removed.
    """

    title: str
    origin: str  # the preset, or the name of the file
    matrix: str  # its TOML text
    backend: Literal["cpu", "gpu"]
    cells: tuple[SweepCell, ...]
    asked: dict[str, Any] = {}  # the options of `gputopo sweep` that change its cells
    defaults: dict[str, Any] = {}
    seed: int | None = None  # of a random order, else None
    cool_down_s: float = 0.0  # pause before each cell
    cool_down_c: float | None = None  # below which all GPUs must be then
    excluded: int = 0
    duplicates: int = 0
    says: tuple[str, ...] = ()  # for every output
    began_at: float | None = None  # seconds since the epoch
    seconds: float = 0.0  # in all, over all parts of a resumed sweep
    time_budget_s: float | None = None  # of `seconds`, from `budget_from_s` of them on; None: no limit
    budget_from_s: float = 0.0
    complete: bool = False  # no cell is pending
    ended_by: str | None = None  # BY_TIME, or the name of the signal; None: it came to its end
    fingerprint: str | None = None  # of the machine
    version: str = ""  # of gputopo

    @property
    def budget_left_s(self) -> float | None:
        """What is left of the time budget; None: there is none."""
        if self.time_budget_s is None:
            return None
        return self.time_budget_s - (self.seconds - self.budget_from_s)

    def expected_s(self, cell: SweepCell) -> float:
        """Return the seconds that a cell will take: medians of the cells that ran.

        As long as other repeats of it, else its prediction, as much longer or shorter as those of the cells
        that ran; else as those of its model, as all, or FALLBACK_S.
        """
        ran = [one for one in self.cells if one.ran and one.seconds is not None]
        ratios = [(one.seconds or 0.0) / one.predicted_s for one in ran if one.predicted_s]
        repeats = [one for one in ran if (one.options, one.counted_s) == (cell.options, cell.counted_s)]
        if not repeats and cell.predicted_s is not None:
            return cell.predicted_s * (median(ratios) if ratios else 1.0)
        of_model = [one for one in ran if one.options.get("model") == cell.options.get("model")]
        alike = repeats or of_model or ran
        return median(one.seconds or 0.0 for one in alike) if alike else FALLBACK_S

    @property
    def left_s(self) -> float:
        """The seconds that the pending cells will take, each with the pause before it."""
        pending = [cell for cell in self.cells if cell.state in ("pending", "running")]
        return sum(self.expected_s(cell) + self.cool_down_s for cell in pending)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Images per second over repeats. `deviation`: of the sample (n - 1), None of a single one."""

    mean: float
    deviation: float | None
    lowest: float
    highest: float
    of: int


class Repeats(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.repeats/1"):
    """All repeats in their order. `images_per_sec` is that of the complete ones, None if there is none.

    `asked`: how many there should be. A repeat that failed is in `runs` with its failure, and in no mean.
    """

    status: str  # complete; failed or interrupted as the first repeat that did not complete
    exit_code: int
    asked: int
    complete: int
    images_per_sec: Spread | None
    runs: tuple[Result, ...]
