"""Towers on several hosts train as computed by hand in float64, and like those of a single host.

The hosts are this one: rank 0's process, which trains, and a TensorFlow server on loopback for each other.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gputopo.launch.data import DataRequest, make_data
from tests.launch.train import slope_model
from tests.launch.train.hosts import cpu, devices_of, serving, spec_of
from tests.launch.train.normed_model import FILTERS, SHAPES, shapes_of
from tests.launch.train.optimizer_oracle import train as train_small
from tests.launch.train.process import WIDE
from tests.launch.train.small_model import SHAPES as SMALL_SHAPES
from tests.launch.train.test_exchange import (
    BYTES,
    INDEPENDENT,
    MOMENTUM,
    RATE,
    SERVER,
    STEPS,
    TOLERANCE,
    TOLERANCE_FP16,
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
    "copy": {"all_reduce": "copy"},
    "small joined": {"all_reduce": "copy", "exchange": {"small_bytes": 2**20, "small_group": 64}},
    "copy in parts": {"all_reduce": "copy", "model": "wide"},
    "ring": {"all_reduce": "ring"},
    "pscpu": {"all_reduce": "pscpu#2"},
    "by hosts": {"all_reduce": "hierarchical"},
    "collective": {"all_reduce": "collective"},
    "relaxed, repacked in fp16": {
        "all_reduce": "copy",
        "exchange": {"relaxed": True, "repacking": 3, "transfer": "fp16"},
    },
}
DELAYED = ("spread and staged", "relaxed, repacked in fp16")
REPLICATED = tuple(name for name, fields in MODES.items() if "variable_update" not in fields)
ALONE = ("copy",)  # on one host of two devices as well
# Every mode once: how many hosts there are, and devices on each, matters to few of them.
LAYOUTS = {
    (2, 2): ("spread and staged", "by hosts", "collective"),
    (2, 1): ("server on another host", "copy", "small joined", "pscpu", "relaxed, repacked in fp16"),
    (3, 1): ("copy in parts", "ring"),
}
CLIPPED: dict[str, Any] = {
    "all_reduce": "copy",
    "optimization": {"gradient_clip_norm": 0.1, "optimizer": "momentum"},
    "precision": {"auto_loss_scale": True, "loss_scale": 64.0},
}
FILES: dict[str, Any] = {"model": "trivial-cifar10", "batch_size": [3, 1], "data": {"name": "cifar10"}}
FED: dict[str, dict[str, Any]] = {
    "drawn for its step": {"data": {"source": "cpu", "prefetch": 0}},
    "staged from Python, compiled by XLA": {
        "data": {"source": "python", "feed": "staged"},
        "precision": {"xla": True},
    },
}
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
        "num_batches": STEPS - 1,
        "num_warmup_batches": 1,
        "learning_rate": RATE,
        "variable_update": "replicated",
        "on": [hosts, each],
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
    for name in ("copy", "small joined"):
        found[f"{name}-2x1"]["transfers"] = True
    found["independent"] = case(2, 1, **momentum, **INDEPENDENT)
    slope = asynchronous("slope")
    found["slope"] = case(2, 1, **{**slope, "exchange": {"asynchronous": True, "ps_spread": True}})
    found["clipped"] = case(2, 1, model="small", **CLIPPED)
    found["nowhere"] = case(2, 1, **SERVER, ps_device=cpu(1, 2))
    return found


def fed(**more: Any) -> dict[str, dict[str, Any]]:
    """Sources of examples other than files, on two hosts."""
    return {name: case(2, 1, **{**fields, **more}) for name, fields in FED.items()}


def located(fields: dict[str, Any], data: Path) -> dict[str, Any]:
    """Return fields with the folder of the data set that they name, if they do."""
    source = fields.get("data", {})
    if "name" not in source:
        return fields
    return {**fields, "data": {**source, "folder": str(data / source["name"]), "distortions": True}}


def saved(folder: Path, data: Path, *, resume: bool = False) -> dict[str, dict[str, Any]]:
    """A run on two hosts that saves a checkpoint in a folder, or continues from it."""
    kept = {"checkpoints": str(folder / "kept"), "resume": resume}
    return {"resumed" if resume else "saved": case(2, 1, **located(SAVED, data), lifecycle=kept)}


def judged(folder: Path, data: Path) -> dict[str, dict[str, Any]]:
    """An evaluation of a checkpoint by files to their end."""
    kept = {"checkpoints": str(folder / "kept")}
    files = case(2, 1, **located(FILES, data), task="eval", lifecycle=kept)
    files |= {"batch_size": UNEVEN, "num_batches": None, "num_warmup_batches": 0}
    return {"evaluated files": files}


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
    make_data(root / "data" / "cifar10", DataRequest(name="cifar10", count=40))
    return root / "data"


@pytest.fixture(scope="module")
def alone(root: Path, data: Path) -> dict[str, Any]:
    """What is compared with two hosts, with two devices of one host, in a process without servers."""
    same = {name: cases()[f"{name}-2x1"] for name in ALONE} | fed(precision={})
    longer = {"longer": {**case(2, 1, **located(SAVED, data)), "num_batches": 2 * STEPS - 1}}
    (root / "alone").mkdir()
    first = saved(root, data)
    return run_cases(root / "alone", 2, on_one_host(same | first | judged(root, data) | longer))


@pytest.fixture(scope="module")
def ran(root: Path, data: Path, alone: dict[str, Any]) -> dict[str, Any]:
    every = spec_of(3, 2)
    # The process joins for collectives in another way, and once.
    collective = spec_of(2, 2, variable_update="replicated", all_reduce="collective")
    there = judged(root, data) | saved(root, data, resume=True)
    by_name = cases()
    collectives = {name: by_name.pop(name) for name in list(by_name) if name.startswith("collective")}
    (root / "collective").mkdir()
    with serving(root / "collective", collective):
        found = run_cases(root / "collective", 4, collectives, all=msgspec.to_builtins(collective))
    with serving(root, every):
        return found | run_cases(root, 6, by_name | fed() | there, all=msgspec.to_builtins(every))


@pytest.mark.parametrize(
    ("name", "hosts", "each"), [(name, *layout) for layout, names in LAYOUTS.items() for name in names]
)
def test_every_synchronous_mode_trains_as_computed_by_hand(
    ran: dict[str, Any], name: str, hosts: int, each: int
) -> None:
    found, towers = ran[f"{name}-{hosts}x{each}"], hosts * each
    tolerance = TOLERANCE_FP16 if "fp16" in name else TOLERANCE
    places = range(towers if name in REPLICATED else 1)
    delay = int(name in DELAYED)
    is_by_hand(found, slices(found, towers), places=places, tolerance=tolerance, delay=delay)
    assert np.ptp(found["losses"]) > 100 * tolerance or "fp16" in name, "it learns"


def test_a_run_goes_on_with_the_same_losses_on_more_hosts(ran: dict[str, Any], alone: dict[str, Any]) -> None:
    whole, first, rest = alone["longer"], alone["saved"], ran["resumed"]
    np.testing.assert_array_equal(np.concatenate([first["losses"], rest["losses"]]), whole["losses"])
    for got, expected in zip(weights(rest, 0), weights(whole, 0), strict=True):
        np.testing.assert_array_equal(got, expected)
    on = json.loads(str(rest["variables_on"]))
    assert min(on.values()) > 0.45 * sum(on.values()), "the largest variable is cut"
    assert scale_of(rest) == scale_of(whole)
    assert 0 < scale_of(first)[0] < STEPS, "the scale was halved, and steps were taken"


def scale_of(found: dict[str, Any]) -> tuple[int, float]:
    """Return the number of skipped steps and the loss scale at the end, of which only skipped steps tell."""
    said = " ".join(found["says"])
    last = re.findall(r"was not finite: (\d+)\. Current loss scale: ([\d.e+]+)\.", said)
    return (int(last[-1][0]), float(last[-1][1])) if last else (0, 0.0)


def test_evaluations_of_two_hosts_are_those_of_one(ran: dict[str, Any], alone: dict[str, Any]) -> None:
    np.testing.assert_array_equal(ran["evaluated files"]["losses"], alone["evaluated files"]["losses"])
    several, single = ran["evaluated files"]["evaluated"], alone["evaluated files"]["evaluated"]
    np.testing.assert_array_equal(several, single)
    assert int(several[0]) == VALIDATED
    assert VALIDATED % (2 * UNEVEN), "the last batch is short"


@pytest.mark.parametrize("name", FED)
def test_every_source_of_examples_feeds_two_hosts_as_one(
    ran: dict[str, Any], alone: dict[str, Any], name: str
) -> None:
    # XLA, which one host does without, adds in another order.
    np.testing.assert_allclose(ran[name]["losses"], alone[name]["losses"], rtol=1e-5)
    assert len(set(ran[name]["losses"].tolist())) == STEPS


@pytest.mark.parametrize("name", ALONE)
def test_two_hosts_of_one_device_train_as_one_host_of_two_to_the_last_bit(
    ran: dict[str, Any], alone: dict[str, Any], name: str
) -> None:
    several, single = ran[f"{name}-2x1"], alone[name]
    np.testing.assert_array_equal(several["losses"], single["losses"])
    for place in range(2 if name in REPLICATED else 1):
        for got, expected in zip(weights(several, place), weights(single, place), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_few_things_travel_between_hosts_that_join_small_gradients(ran: dict[str, Any]) -> None:
    apart, joined = (int(ran[f"{name}-2x1"]["transfers"]) for name in ("copy", "small joined"))
    # Whatever the model: the begin, statistics, losses, marks and probes, the gradients, the sums, the end.
    assert joined <= 16
    assert apart - joined >= 2 * (len(SHAPES) - 1), "gradients one way, sums the other"


def test_independent_towers_train_on_their_own_rows(ran: dict[str, Any]) -> None:
    for tower, own in enumerate(slices(ran["independent"], 2)):
        is_by_hand(ran["independent"], [own], places=[tower])


def test_no_asynchronous_update_is_lost(ran: dict[str, Any]) -> None:
    found = ran["slope"]
    total = sum(0.5 * slope_model.gradient(images, labels) for images, labels in slices(found, 2))
    expected = found["first0"] - RATE * STEPS * total
    np.testing.assert_allclose(found["last0_0"], expected, rtol=0, atol=1e-5)


def test_clipping_by_an_automatic_scale_is_that_of_a_single_host(ran: dict[str, Any]) -> None:
    found = ran["clipped"]
    losses, last = train_small(
        [found[f"first{number}"] for number in range(len(SMALL_SHAPES))],
        found["images"],
        found["labels"],
        steps=STEPS,
        rate=RATE,
        **CLIPPED["optimization"],
    )
    assert found["losses"] == pytest.approx(losses, rel=TOLERANCE)
    for place in range(2):
        for number, expected in enumerate(last):
            np.testing.assert_allclose(found[f"last{place}_{number}"], expected, rtol=0, atol=TOLERANCE)


def test_variables_and_ops_are_counted_on_the_devices_of_every_host(ran: dict[str, Any]) -> None:
    on = {name: json.loads(str(found["variables_on"])) for name, found in ran.items() if "x" in name[-3:]}
    assert on["server on another host-2x1"] == {ON_SECOND["ps_device"]: BYTES}
    parts = on["spread and staged-2x2"]
    assert sum(parts.values()) == 4 * sum(map(math.prod, shapes_of(WIDE, FILTERS).values()))
    assert set(parts) == {device.device for device in devices_of(2, 2)}
    assert max(parts.values()) < 1.2 * min(parts.values()), "the dense kernel is cut"
    towers = [device.device for device in devices_of(3, 1)]
    assert on["ring-3x1"] == dict.fromkeys(towers, BYTES)
    ops = json.loads(str(ran["ring-3x1"]["ops_on"]))
    assert set(ops) == set(towers)
    assert len(set(ops.values())) == 1, "every tower has the same ops"


def test_marks_of_every_host_are_in_order_and_of_one_clock(ran: dict[str, Any]) -> None:
    for name, found in ran.items():
        if not isinstance(found, str):
            assert (found["marks"] >= 0).all(), name
            assert (found["marks"][:, :, 2] > 0).all(), f"{name}: computing takes time"


# Which of its figures each host has: sends, receives, sums.
ALL = (True, True, True)
EXCHANGED: dict[str, list[tuple[bool, bool, bool]]] = {
    "copy-2x1": [ALL, ALL],
    "copy in parts-3x1": [ALL, ALL, ALL],
    "by hosts-2x2": [ALL, ALL],
    "ring-3x1": [ALL, ALL, ALL],
    "pscpu-2x1": [ALL, ALL],  # gradients of one, sums of the other
    "server on another host-2x1": [(True, False, False), (False, True, False)],
}


@pytest.mark.parametrize("name", EXCHANGED)
def test_every_step_has_the_marks_of_its_exchange_between_hosts(ran: dict[str, Any], name: str) -> None:
    found = ran[name]["exchange"]
    assert found.shape[0] == STEPS
    assert (~np.isnan(found) == np.array(EXCHANGED[name])).all(), found
    assert (found[~np.isnan(found)] >= 0).all()


@pytest.mark.parametrize("name", ["spread and staged-2x2", "relaxed, repacked in fp16-2x1", "independent"])
def test_an_exchange_that_no_step_waits_for_has_no_marks(ran: dict[str, Any], name: str) -> None:
    assert ran[name]["exchange"].shape == (STEPS, 0)


def test_a_device_that_no_host_has_is_refused_before_training(ran: dict[str, Any]) -> None:
    assert cpu(1, 2) in ran["nowhere"]
