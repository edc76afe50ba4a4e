"""GPUs that another kernel driver holds: NVIDIA's driver does not count them, and so no capture does."""

from pathlib import Path

import pytest

from gputopo.findings import find
from gputopo.planner import Request, plan
from gputopo.values.errors import NoPlanError
from gputopo.values.machine import Hop
from tests.captures import samples
from tests.captures.samples import loaded

HELD = samples.GPUS[0]
# nvidia-smi on the same box: it counts the two other cards only.
SMI = """\
\tGPU0\tGPU1\tCPU Affinity
GPU0\t X \tSYS\t0-3
GPU1\tSYS\t X \t4-7
"""


def lspci(driver: str, *slots: str) -> str:
    """Return the list of the box in which the cards in these slots are bound to another driver."""
    text = samples.LSPCI_VERBOSE
    for slot in slots:
        before, head, after = text.partition(f"{slot} VGA")
        text = before + head + after.replace("driver in use: nvidia", f"driver in use: {driver}", 1)
    return text


@pytest.mark.parametrize("driver", ["vfio-pci", "nouveau"])
def test_a_gpu_of_another_driver_has_no_number_and_the_others_have_those_of_nvidia_smi(
    driver: str, tmp_path: Path
) -> None:
    machine = loaded(tmp_path, lspci(driver, "05:00.0"))
    assert [(gpu.index, gpu.pci_address) for gpu in machine.gpus] == list(enumerate(samples.GPUS[1:]))
    assert [(link.a, link.b, link.hop) for link in machine.links] == [(0, 1, Hop.SYS)]
    assert HELD in {node.address for node in machine.pci}
    assert [finding.id for finding in find(machine)].count("driver.other_driver") == 1
    found = plan(machine, Request())
    assert found.choice.gpus == (0, 1)
    assert HELD in found.refused[0].reason


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_what_counts_every_card_does_not_contradict_what_counts_nvidias(
    order: tuple[int, ...], tmp_path: Path
) -> None:
    texts = (lspci("vfio-pci", "05:00.0"), samples.LSPCI_TREE, SMI)
    machine = loaded(tmp_path, *(texts[place] for place in order))
    assert machine.contradictions == ()
    assert [gpu.pci_address for gpu in machine.gpus] == list(samples.GPUS[1:])
    assert [gpu.cpu_affinity for gpu in machine.gpus] == ["0-3", "4-7"]


def test_where_every_gpu_is_bound_to_another_driver_they_keep_their_numbers_and_none_is_planned(
    tmp_path: Path,
) -> None:
    slots = [address.removeprefix("0000:") for address in samples.GPUS]
    machine = loaded(tmp_path, lspci("nouveau", *slots))
    assert [gpu.pci_address for gpu in machine.gpus] == list(samples.GPUS)
    with pytest.raises(NoPlanError, match=r"none of the 3 GPUs can be used.*nouveau"):
        plan(machine, Request())


def test_if_every_gpu_has_a_name_none_is_reported_to_have_another_driver(tmp_path: Path) -> None:
    """The PCI list was then read at another time than the names."""
    names = "".join(f"GPU {number}: NVIDIA A100-SXM4-40GB (UUID: GPU-{number})\n" for number in range(3))
    machine = loaded(tmp_path, names, lspci("vfio-pci", "05:00.0"))
    assert "driver.other_driver" not in [finding.id for finding in find(machine)]
