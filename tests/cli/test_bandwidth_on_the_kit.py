"""The whole command against the doubles of NVML, the PCI tree and CUDA, in its own process."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cuda import session
from tests.kit.cuda.derive import from_scenario
from tests.kit.cuda.scenario import CudaSpec
from tests.kit.cuda.words import spoilt
from tests.kit.forks import Done
from tests.kit.scenarios import SCENARIOS

SMALL_CARDS = f"memory={48 * 2**20}"  # what is copied is stored by the double
pytestmark = [
    pytest.mark.sessions,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build the CUDA double with"),
    pytest.mark.usefixtures("own_home"),
]


def box(scenario: str, *faults: str) -> CudaSpec:
    return spoilt(from_scenario(SCENARIOS[scenario]), (SMALL_CARDS, *faults))


# Host memory takes half of the time: see the tests of machines without a GPU.
WITHOUT_HOST_MEMORY = """
import sys
from functools import partial
from gputopo.probes.cuda import engine
from gputopo.probes.session import measuring
from gputopo.probes.session.host_memory import HostMemoryRates
from tests.kit.command import main
measuring.measure_host_memory = lambda host, **_: HostMemoryRates()
"""
RUN = "sys.exit(main(sys.argv[1:]))"
FEW = ("--effort", "1")  # timed repeats of a copy


def run(spec: CudaSpec, changes: str, scenario: str, *command: str) -> Done:
    return session.run_program(spec, "-c", WITHOUT_HOST_MEMORY + changes + RUN, scenario, "--", *command)


def test_a_machine_is_measured_and_saved(own_home: Path) -> None:
    done = run(box("desktop"), "", "desktop", "bandwidth", *FEW, "--save", "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert {"h2d", "d2h", "d2d_local"} <= {one["kind"] for one in document["samples"]}
    up = next(one for one in document["samples"] if one["kind"] == "h2d" and one["pinned"])
    assert up["expected_gb_per_s"] == pytest.approx(up["median_gb_per_s"], rel=0.1)
    assert (own_home / "history.sqlite").exists()


SOAK = """
import msgspec
from gputopo.cli import bandwidth
from gputopo.probes.session import soak

read, counts = bandwidth.machine_from, []

def counting(sources):
    machine = read(sources)
    counts.append(100 * len(counts))
    gpus = list(machine.gpus)
    gpus[1] = msgspec.structs.replace(
        gpus[1], pcie=msgspec.structs.replace(gpus[1].pcie, replay_counter=counts[-1])
    )
    return msgspec.structs.replace(machine, gpus=tuple(gpus))

bandwidth.machine_from = counting
soak.MIN_INTERVAL_S = 0.1
"""


def test_a_soak_reports_what_was_counted_under_load() -> None:
    done = run(box("four"), SOAK, "four", "bandwidth", "--gpus", "0,1", "--soak", "0.01", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["complete"] is True
    assert document["soak"]["asked_s"] == pytest.approx(0.6)
    kinds = {one["kind"] for interval in document["soak"]["intervals"] for one in interval["rates"]}
    assert {"h2d", "d2h"} <= kinds
    assert len(document["machine"]["samples"]) >= 3
    (found,) = [one for one in document["findings"] if one["id"] == "soak.errors"]
    assert (found["subject"], "PCIe replay counter by" in found["says"]) == ("gpu:1", True)
