"""Each GPU of a machine by the same job: alone, all at once, in pairs (`gputopo.screen/1`)."""

from typing import Literal

import msgspec

from gputopo.values.run.batches import BatchSize
from gputopo.values.run.verdict import Causes, Verdict

Kind = Literal["alone", "independent", "together", "pair"]


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a run shows of one GPU: medians; None: not reported. Percent: of its maximum.

    `throttled_power`, `throttled_thermal`, `throttled_hardware`: shares of the time, 0 to 1. `link_gb_per_s`:
    data rate of the PCIe link in one direction. `other_processes`: on the GPU. `host_cpu`: share of the CPU
    that other programs took where no core was left; `host_swap`: share of the time in which the host swapped.
    `weights_share`: of a step, in which it waited for weights.
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
    link_gb_per_s: float | None = None
    other_processes: float | None = None
    host_cpu: float | None = None
    host_swap: float | None = None
    weights_share: float | None = None


class InRun(msgspec.Struct, frozen=True, kw_only=True):
    """One device in a run. `number`: index of the GPU, or of the CPU device. `images_per_sec`: its own pace.

    `verdict`: of the run, which compares its devices step by step; None in a run of one.
    """

    number: int
    images_per_sec: float | None = None
    reading: Reading = Reading()
    verdict: Verdict | None = None


class ScreenRun(msgspec.Struct, frozen=True, kw_only=True):
    """One short run. `kind`: one device "alone", all of them with nothing exchanged ("independent"), all in
    the plan's mode ("together"), or a "pair" in it.

    `images_per_sec`: median of all devices together; `noise`: standard error of it, as a share of it;
    `failure`: why there is neither. `folder`: of the run, within that of the screen.
    """

    kind: Kind
    round: int
    mode: str
    folder: str
    devices: tuple[InRun, ...]
    images_per_sec: float | None = None
    noise: float | None = None
    failure: str | None = None


class Under(msgspec.Struct, frozen=True, kw_only=True):
    """Percent by which a device is below another, or its own past; negative: above. `low`, `high`: bounds of
    the 95 % confidence interval; None: too few runs.
    """

    percent: float
    low: float | None = None
    high: float | None = None


class ScreenDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device by all runs. `alone`: images/sec, the median of its rounds; None: none could be run.

    `at_once`: its pace in the run of all with nothing exchanged; `together`: in the plan's mode.
    `word`: slow, even, or cannot tell, against `peer`, the middle one of the others of its kind; `says`: in a
    sentence. `causes`: why a slow one is slow, each with its share of `under`; `explained_percent`: their
    sum; `unexplained_percent`: the rest.
    `since`: below the last screen of this machine; `slower`: beyond the noise; `changes`: what is different
    from it, in words.
    """

    number: int
    name: str | None = None
    alone: float | None = None
    rounds: int = 0
    percent_of_best: float | None = None
    at_once: float | None = None
    together: float | None = None
    reading: Reading = Reading()
    word: str
    says: str
    peer: int | None = None
    under: Under | None = None
    causes: Causes | None = None
    explained_percent: float | None = None
    unexplained_percent: float | None = None
    since: Under | None = None
    slower: bool = False
    changes: tuple[str, ...] = ()
    failure: str | None = None


class Screen(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.screen/1"):
    """What was screened. `complete`: no signal and no limit of time left out a run. `says`: for every output.

    `last`: folder of the screen that `since` compares with.
    """

    model: str
    batch_size: BatchSize
    backend: Literal["cpu", "gpu"]
    says: tuple[str, ...]
    devices: tuple[ScreenDevice, ...]
    runs: tuple[ScreenRun, ...]
    seconds: float
    quick: bool
    complete: bool
    fingerprint: str | None = None
    last: str | None = None
