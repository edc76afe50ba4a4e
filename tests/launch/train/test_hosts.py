"""Towers on several hosts train as computed by hand in float64, and like those of a single host.

The hosts are this one: rank 0's process, which trains, and a TensorFlow server on loopback for each other.
"""

import math
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gputopo.launch.data import DataRequest, make_data
from tests.launch.train import slope_model
from tests.launch.train.hosts import cpu, devices_of, serving, spec_of
from tests.launch.train.normed_model import FILTERS, shapes_of
from tests.launch.train.optimizer_oracle import train as train_small
from tests.launch.train.process import WIDE
from tests.launch.train.small_model import SHAPES as SMALL_SHAPES
from tests.launch.train.test_exchange import (
    BYTES,
    MOMENTUM,
    RATE,
    SERVER,
    STEPS,
    TOLERANCE,
    asynchronous,
    is_by_hand,
    slices,
    weights,
)
from tests.launch.train.trained import run_cases

pytestmark = pytest.mark.tensorflow

JOINT_BATCH = 12
VALIDATED, UNEVEN = 4, 3  # pictures of the evaluation, and of each device in a batch

ON_SECOND = {**SERVER, "ps_device": cpu(1)}
MODES: dict[str, dict[str, Any]] = {
    "server on another host": ON_SECOND,
    "spread and staged": {**SERVER, "model": "wide", "exchange": {"staged": True, "ps_spread": True}},
    "copy in parts": {"all_reduce": "copy", "model": "wide"},
    "pscpu": {"all_reduce": "pscpu#2"},
    "by hosts": {"all_reduce": "hierarchical"},
}
DELAYED = ("spread and staged",)
REPLICATED = tuple(name for name, fields in MODES.items() if "variable_update" not in fields)
# Every mode once: how many devices each host has matters to few of them. Other modes: `test_exchange`.
LAYOUTS = {
    (2, 2): ("by hosts",),
    (2, 1): ("spread and staged", "server on another host", "copy in parts", "pscpu"),
}
CLIPPED: dict[str, Any] = {
    "all_reduce": "copy",
    "exchange": {"small_bytes": 2**20, "small_group": 64},
    "optimization": {"gradient_clip_norm": 0.1, "optimizer": "momentum"},
    "precision": {"auto_loss_scale": True, "loss_scale": 64.0},
}
FILES: dict[str, Any] = {"model": "trivial-cifar10", "batch_size": [3, 1]}
# Saved by a host, continued by two. The scale is halved in the first steps: if the rest began with the first
# scale, it would skip its first steps again. On two hosts the largest variable is cut.
HALVED = {"precision": {"compute": "fp16", "auto_loss_scale": True, "loss_scale": 2.0**18}}
SAVED: dict[str, Any] = {
    **SERVER,
    "exchange": {"ps_spread": True},
    **FILES,
    **HALVED,
    "optimization": {"optimizer": "momentum"},
}


def case(hosts: int, each: int, **fields: Any) -> dict[str, Any]:
    common = {
        "model": "norm",
        "batch_size": JOINT_BATCH // (hosts * each),
        "learning_rate": RATE,
        "variable_update": "replicated",
        "on": [hosts, each],
        "steps": STEPS,
    }
    if fields.get("all_reduce") == "hierarchical":
        groups = [[rank * each + number for number in range(each)] for rank in range(hosts)]
        fields["exchange"] = {"groups": groups}
    return {**common, **fields}


def cases() -> dict[str, dict[str, Any]]:
    momentum = {"optimization": {"optimizer": "momentum", "momentum": MOMENTUM}}
    found = {
        f"{name}-{hosts}x{each}": case(hosts, each, **momentum, **MODES[name])
        for (hosts, each), names in LAYOUTS.items()
        for name in names
    }
    slope = asynchronous("slope")
    found["slope"] = case(2, 1, **{**slope, "exchange": {"asynchronous": True, "ps_spread": True}})
    found["clipped and joined"] = case(2, 1, model="small", **CLIPPED)
    found["nowhere"] = case(2, 1, **SERVER, ps_device=cpu(1, 2))
    return found


def task(folder: Path, data: Path, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A run of a task on two hosts by files, with a folder of checkpoints."""
    kept = {"checkpoints": str(folder), "checkpoint_steps": STEPS, "resume": more.pop("resume", False)}
    files = {"name": "cifar10", "folder": str(data), "distortions": True}
    found = case(2, 1, **fields, lifecycle=kept, data=files, num_batches=STEPS, num_warmup_batches=0, **more)
    del found["steps"]
    return found


def judged(root: Path, data: Path) -> dict[str, dict[str, Any]]:
    """An evaluation of a checkpoint by files to their end."""
    files = task(root / "whole", data, FILES, task="eval")
    return {"evaluated": files | {"batch_size": UNEVEN, "num_batches": None}}


def on_one_host(cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the cases of two hosts of one device as those of two devices of a host."""
    found = {}
    for name, fields in cases.items():
        assert fields["on"] == [2, 1]
        found[name] = {key: value for key, value in fields.items() if key != "on"}
        if (server := fields.get("ps_device")) is not None:
            found[name]["ps_device"] = f"/CPU:{re.findall(r'task:(.)', server)[0]}"
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def data(root: Path) -> Path:
    make_data(root / "data", DataRequest(name="cifar10", count=40))
    return root / "data"


@pytest.fixture(scope="module")
def alone(root: Path, data: Path) -> dict[str, Any]:
    """What is compared with two hosts, with two devices of one host, in a process without servers."""
    (root / "alone").mkdir()
    whole = {**task(root / "whole", data, SAVED), "num_batches": 2 * STEPS}
    return run_cases(root / "alone", 2, on_one_host({"whole": whole} | judged(root, data)))


@pytest.fixture(scope="module")
def ran(root: Path, data: Path, alone: dict[str, Any]) -> dict[str, Any]:
    (root / "half").mkdir()
    shutil.copy(root / "whole" / f"checkpoint-{STEPS:08d}.npz", root / "half")
    resumed = task(root / "half", data, SAVED, resume=True)
    there = {"resumed": resumed} | judged(root, data)
    every = spec_of(2, 2)
    with serving(root, every):
        return run_cases(root, 4, cases() | there, all=msgspec.to_builtins(every))


@pytest.mark.parametrize(
    ("name", "hosts", "each"), [(name, *layout) for layout, names in LAYOUTS.items() for name in names]
)
def test_every_synchronous_mode_trains_as_computed_by_hand(
    ran: dict[str, Any], name: str, hosts: int, each: int
) -> None:
    found, towers = ran[f"{name}-{hosts}x{each}"], hosts * each
    places = range(towers if name in REPLICATED else 1)
    delay = int(name in DELAYED)
    is_by_hand(found, slices(found, towers), places=places, delay=delay)
    assert np.ptp(found["joint"]) > 100 * TOLERANCE, "it learns"


def test_a_run_goes_on_with_the_same_losses_on_more_hosts(ran: dict[str, Any], alone: dict[str, Any]) -> None:
    whole, rest = alone["whole"], ran["resumed"]
    np.testing.assert_array_equal(rest["losses"], whole["losses"][STEPS:])
    for got, expected in zip(weights(rest, 0), weights(whole, 0), strict=True):
        np.testing.assert_array_equal(got, expected)
    on = rest["variables"]
    assert min(on.values()) > 0.45 * sum(on.values()), "the largest variable is cut"
    assert scale_of(rest) == scale_of(whole)
    assert 0 < scale_of(whole)[0] < STEPS, "the scale was halved, and steps were taken"


def scale_of(found: dict[str, Any]) -> tuple[int, float]:
    """Return the number of skipped steps and the loss scale at the end, of which only skipped steps tell."""
    said = " ".join(found["says"])
    last = re.findall(r"was not finite: (\d+)\. Current loss scale: ([\d.e+]+)\.", said)
    return (int(last[-1][0]), float(last[-1][1])) if last else (0, 0.0)


def test_evaluations_of_two_hosts_are_those_of_one(ran: dict[str, Any], alone: dict[str, Any]) -> None:
    np.testing.assert_array_equal(ran["evaluated"]["losses"], alone["evaluated"]["losses"])
    several, single = ran["evaluated"]["evaluated"][0], alone["evaluated"]["evaluated"][0]
    assert several == single
    assert several[0] == VALIDATED
    assert VALIDATED % (2 * UNEVEN), "the last batch is short"


def test_few_things_travel_between_hosts_that_join_small_gradients(ran: dict[str, Any]) -> None:
    # Whatever the model: the begin, losses, marks and probes, flags and norms, gradients, sums, the end.
    assert ran["clipped and joined"]["transfers"] <= 24


def test_no_asynchronous_update_is_lost(ran: dict[str, Any]) -> None:
    found = ran["slope"]
    total = sum(0.5 * slope_model.gradient(images, labels) for images, labels in slices(found, 2))
    expected = found["first0"] - RATE * STEPS * total
    np.testing.assert_allclose(found["last0_0"], expected, rtol=0, atol=1e-5)


def test_clipping_by_an_automatic_scale_is_that_of_a_single_host(ran: dict[str, Any]) -> None:
    found = ran["clipped and joined"]
    losses, last = train_small(
        [found[f"first{number}"] for number in range(len(SMALL_SHAPES))],
        found["images"],
        found["labels"],
        steps=STEPS,
        rate=RATE,
        **CLIPPED["optimization"],
    )
    assert found["joint"] == pytest.approx(losses, rel=TOLERANCE)
    for place in range(2):
        for number, expected in enumerate(last):
            np.testing.assert_allclose(found[f"last{place}_{number}"], expected, rtol=0, atol=TOLERANCE)


def test_variables_and_ops_are_counted_on_the_devices_of_every_host(ran: dict[str, Any]) -> None:
    on = {name: found["variables"] for name, found in ran.items() if "x" in name[-3:]}
    assert on["server on another host-2x1"] == {ON_SECOND["ps_device"]: BYTES}
    parts = on["spread and staged-2x1"]
    assert sum(parts.values()) == 4 * sum(map(math.prod, shapes_of(WIDE, FILTERS).values()))
    assert set(parts) == {cpu(0), cpu(1)}
    assert max(parts.values()) < 1.2 * min(parts.values()), "the dense kernel is cut"
    towers = {device.device for device in devices_of(2, 2)}
    assert on["by hosts-2x2"] == dict.fromkeys(towers, BYTES)
    ops = ran["by hosts-2x2"]["ops"]
    assert set(ops) == towers
    assert len(set(ops.values())) == 1, "every tower has the same ops"


def test_marks_of_every_host_are_in_order_and_of_one_clock(ran: dict[str, Any]) -> None:
    for name, found in ran.items():
        if "marks" in found:
            assert (np.diff(found["marks"], axis=2, prepend=0.0) >= 0).all(), name
            assert (np.diff(found["marks"])[:, :, 1] > 0).all(), f"{name}: computing takes time"


# Which of its figures each host has: sends, receives, sums.
ALL = (True, True, True)
EXCHANGED: dict[str, list[tuple[bool, bool, bool]]] = {
    "copy in parts-2x1": [ALL, ALL],
    "by hosts-2x2": [ALL, ALL],
    "pscpu-2x1": [ALL, ALL],  # gradients of one, sums of the other
    "server on another host-2x1": [(True, False, False), (False, True, False)],
}


@pytest.mark.parametrize("name", EXCHANGED)
def test_every_step_has_the_marks_of_its_exchange_between_hosts(ran: dict[str, Any], name: str) -> None:
    found = ran[name]["exchange"]
    assert found.shape[0] == STEPS
    assert (~np.isnan(found) == np.array(EXCHANGED[name])).all(), found
    assert (found[~np.isnan(found)] >= 0).all()


def test_an_exchange_that_no_step_waits_for_has_no_marks(ran: dict[str, Any]) -> None:
    assert ran["spread and staged-2x1"]["exchange"].shape == (STEPS, 0)


def test_a_device_that_no_host_has_is_refused_before_training(ran: dict[str, Any]) -> None:
    assert cpu(1, 2) in ran["nowhere"]["error"]
