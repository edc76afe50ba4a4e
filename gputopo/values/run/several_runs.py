"""Documents of several runs: a screen (`gputopo.screen/1`) and a sweep (`gputopo.sweep/1`)."""

from statistics import median
from typing import Any, Literal

import msgspec

from gputopo.values.run.batches import BatchSize
from gputopo.values.run.result import Result
from gputopo.values.run.verdict import SLOW, Causes, Verdict

Kind = Literal["alone", "independent", "together", "pair"]


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of one GPU in a run: medians; None: not reported. Percent: of its maximum.

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
    host_cpu: float | None = None  # share of the CPU that other programs used if they left no core
    host_swap: float | None = None  # share of the time in which the host swapped
    weights_share: float | None = None  # share of a step in which it waited for weights


class InRun(msgspec.Struct, frozen=True, kw_only=True):
    """One device in a run.

    `verdict`: of the run, which compares its devices step by step; None if the run has one device.
    """

    number: int  # index of the GPU, or of the CPU device
    images_per_sec: float | None = None  # its own pace
    reading: GpuReading = GpuReading()
    verdict: Verdict | None = None


class ScreenRun(msgspec.Struct, frozen=True, kw_only=True):
    """One short run.

    `kind`: "alone": one device; "independent": all devices without an exchange; "together": all devices in
    the plan's mode; "pair": two devices in that mode.
    """

    kind: Kind
    round: int
    mode: str
    folder: str  # within the folder of the screen
    devices: tuple[InRun, ...]
    images_per_sec: float | None = None  # median of all devices together
    noise: float | None = None  # its standard error, as a share of it
    failure: str | None = None  # why there is no speed
    busy: str | None = None  # why the host was busy, so that the speed is not reliable


class Under(msgspec.Struct, frozen=True, kw_only=True):
    """Percent by which a device is slower than another, or than in the past; negative: faster.

    `low`, `high`: bounds of the 95 % confidence interval; None: too few runs.
    """

    percent: float
    low: float | None = None
    high: float | None = None


class ScreenDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device over all runs."""

    number: int
    name: str | None = None
    alone: float | None = None  # images/sec, median over its rounds; None: no run succeeded
    rounds: int = 0
    percent_of_best: float | None = None
    at_once: float | None = None  # its pace while all train without an exchange
    together: float | None = None  # in the plan's mode
    reading: GpuReading = GpuReading()
    word: str  # slow, even, or cannot tell, compared with `peer`
    says: str  # in one sentence
    peer: int | None = None
    under: Under | None = None
    causes: Causes | None = None  # causes if it is slow, each with its share of `under`
    explained_percent: float | None = None  # their sum
    unexplained_percent: float | None = None  # the rest
    since: Under | None = None  # compared with the last screen of this machine
    slower: bool = False  # by more than the noise
    changes: tuple[str, ...] = ()  # differences from the last screen, in words
    failure: str | None = None

    @property
    def is_outlier(self) -> bool:
        """Whether it is slow, or slower than in the last screen."""
        return self.word == SLOW or self.slower


class Screen(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.screen/1"):
    """The result of a screen."""

    model: str
    batch_size: BatchSize
    backend: Literal["cpu", "gpu"]
    says: tuple[str, ...]  # notes for every output
    devices: tuple[ScreenDevice, ...]
    runs: tuple[ScreenRun, ...]
    seconds: float
    quick: bool
    complete: bool  # no run was skipped because of a signal or a time limit
    fingerprint: str | None = None
    last: str | None = None  # folder of the screen for the comparison in `since`


CellState = Literal["pending", "running", "done", "failed", "refused", "left_out"]
"""`refused`: its options cannot be combined, or not here; `left_out`: not useful on this machine."""
# In the folder of a sweep: the runs, the manifest, the generated examples for its cells.
FOLDER, MANIFEST, EXAMPLES = "cells", "sweep.json", "data"
# In the folder of a run or a screen: its short runs.
AUTOTUNE_RUNS, SCREEN_RUNS = "autotune", "screen"
BY_TIME = "time"  # ended by its time budget
FALLBACK_S = 60.0  # for a cell about which nothing is known yet


class SweepCell(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep.

    `options`: options of `gputopo run`, by name as typed (`variable_update`); True for a flag. `data_dir` may
    be `made:imagenet` or `made:cifar10`: generated images of gputopo make-data. `other_cpu_share`: share of
    all cores that other processes used, before or during the cell, whichever is higher.
    """

    number: int  # from 1, in the order of the matrix
    name: str  # name of its folder
    table: str  # its table in the matrix
    options: dict[str, Any]
    repeat: int = 1  # from 1
    state: CellState = "pending"
    reason: str | None = None  # why it failed, was refused or was left out
    notes: tuple[str, ...] = ()  # what was changed for this machine
    mode: str | None = None  # the planned placement (`mode_words`), or the one that ran instead
    gpus: tuple[int, ...] = ()  # of the plan, in tower order; () on CPU devices
    devices: int | None = None  # number of devices
    counted_s: float | None = None  # seconds of its counted steps; None: as in the options
    predicted_s: float | None = None  # of the whole cell, including the start of TensorFlow; None: not known
    began_at: float | None = None
    seconds: float | None = None  # measured
    images_per_sec: float | None = None  # median of all devices together, of `steps` counted steps
    steps: int | None = None
    noise: float | None = None  # its standard error, as a share of it; None for fewer than two steps
    other_cpu_share: float | None = None
    beside_other_work: bool = False  # too much other work for a comparison
    temperature_c: float | None = None  # of the hottest GPU when it started

    @property
    def folder(self) -> str:
        """Folder of its run, within the folder of the sweep."""
        return f"{FOLDER}/{self.name}"

    @property
    def ran(self) -> bool:
        """Whether it ran to its end, successfully or not."""
        return self.state in ("done", "failed")


class Sweep(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.sweep/1"):
    """The manifest of a sweep.

    `defaults`: defaults of `gputopo run` that no machine changes, for cells without the option. `excluded`:
    number of cells that the matrix excludes without a reason; `duplicates`: number of equal cells that were
    removed.
    """

    title: str
    origin: str  # the preset, or the name of the matrix file
    matrix: str  # its TOML text
    backend: Literal["cpu", "gpu"]
    cells: tuple[SweepCell, ...]
    asked: dict[str, Any] = {}  # the options of `gputopo sweep` that change its cells
    defaults: dict[str, Any] = {}
    seed: int | None = None  # for a random order, else None
    cool_down_s: float = 0.0  # pause before each cell
    cool_down_c: float | None = None  # temperature below which all GPUs must be before each cell
    excluded: int = 0
    duplicates: int = 0
    says: tuple[str, ...] = ()  # notes for every output
    began_at: float | None = None  # seconds since the epoch
    seconds: float = 0.0  # in total, over all parts of a resumed sweep
    time_budget_s: float | None = None  # limit of `seconds` minus `budget_from_s`; None: no limit
    budget_from_s: float = 0.0
    complete: bool = False  # no cell is pending
    ended_by: str | None = None  # BY_TIME, or the name of the signal; None: it completed
    fingerprint: str | None = None  # of the machine
    version: str = ""  # of gputopo

    @property
    def budget_left_s(self) -> float | None:
        """The remaining time budget in seconds; None: the time is not limited."""
        if self.time_budget_s is None:
            return None
        return self.time_budget_s - (self.seconds - self.budget_from_s)

    def expected_s(self, cell: SweepCell) -> float:
        """Return the expected seconds of a cell, from medians of the cells that ran.

        In this order: the time of other repeats; its prediction, scaled by measured over predicted times of
        other cells; the time of cells with its model; of all cells; FALLBACK_S.
        """
        ran = [other for other in self.cells if other.ran and other.seconds is not None]
        ratios = [(other.seconds or 0.0) / other.predicted_s for other in ran if other.predicted_s]
        repeats = [
            other for other in ran if (other.options, other.counted_s) == (cell.options, cell.counted_s)
        ]
        if not repeats and cell.predicted_s is not None:
            return cell.predicted_s * (median(ratios) if ratios else 1.0)
        of_model = [other for other in ran if other.options.get("model") == cell.options.get("model")]
        alike = repeats or of_model or ran
        return median(other.seconds or 0.0 for other in alike) if alike else FALLBACK_S

    @property
    def left_s(self) -> float:
        """The expected seconds of the pending cells, including the pause before each."""
        pending = [cell for cell in self.cells if cell.state in ("pending", "running")]
        return sum(self.expected_s(cell) + self.cool_down_s for cell in pending)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Images per second over repeats. `deviation`: of the sample (n - 1), None for a single repeat."""

    mean: float
    deviation: float | None
    lowest: float
    highest: float
    of: int


class Repeats(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.repeats/1"):
    """All repeats in order. `images_per_sec`: over the complete ones, None if no repeat is complete.

    `asked`: requested number of repeats. A repeat that failed is in `runs` with its failure, but in no mean.
    """

    status: str  # complete; else failed or interrupted, like the first repeat that did not complete
    exit_code: int
    asked: int
    complete: int
    images_per_sec: Spread | None
    runs: tuple[Result, ...]
