import os
import pwd
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from gputopo.findings import find_after_watch
from gputopo.probes import with_ports_now
from gputopo.values import schema
from gputopo.values.history import History
from gputopo.values.machine import Hop, Machine
from tests.kit.machines import leaves, machine_of, read, read_here, read_machine
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS, ProcessSpec, changed
from tests.kit.sysfs import write_files, write_tree

TOPOLOGY_LEVEL = "nvmlDeviceGetTopologyCommonAncestor"


@pytest.mark.parametrize("name", ["7gforce", "dgx1", "desktop", "lost_gpu"])
def test_a_scenario_is_read_whole_and_each_fact_that_is_absent_has_a_reason(name: str) -> None:
    machine = machine_of(name)
    assert (machine.source, machine.driver.status, machine.contradictions) == ("live", "ok", ())
    assert machine.driver.kernel_module_version == machine.driver.version
    assert [gpu.index for gpu in machine.gpus] == list(range(len(machine.gpus)))
    assert [(link.a, link.b) for link in machine.links] == list(combinations(range(len(machine.gpus)), 2))
    facts = leaves(machine)
    for gpu in machine.gpus:
        absent = {
            f"gpus[{gpu.index}].{path}"
            for path, fact in leaves(gpu).items()
            if fact is None and "[" not in path
        }
        limits = {f"gpus[{gpu.index}].pcie.limiting_hop"}  # None also where nothing is slower than the card
        assert absent - limits <= machine.missing.keys()
    assert all(facts.get(path) is None for path in machine.missing)
    assert schema.decode(schema.encode(machine), Machine, origin="test") == machine


@pytest.mark.parametrize("name", ["7gforce", "dual_socket_4_4", "sixteen"])
def test_the_hops_of_the_tree_are_those_of_nvml_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    fake = FakeNvml(scenario)
    fake.refuse(TOPOLOGY_LEVEL)
    by_tree = read(scenario, tmp_path, fake)
    assert [link.hop for link in by_tree.links] == [
        Hop.from_level(scenario.level(a, b)) for a, b in combinations(range(len(scenario.gpus)), 2)
    ]
    assert (fake.writes, fake.open) == ([], 0)


def test_the_cube_mesh_counts_its_nvlinks_beside_the_hops() -> None:
    machine = machine_of("dgx1")
    linked = [(link.a, link.b) for link in machine.links if link.nvlinks]
    assert len(linked) == 16
    assert ((0, 4) in linked, (0, 5) in linked) == (True, False)
    across = machine.link(0, 4)
    assert across is not None
    assert (across.hop, across.nvlinks) == (Hop.SYS, 1)
    nic = machine.nics[0]
    assert (nic.name, nic.numa_node, nic.hops["gpu:0"]) == ("mlx5_0", 0, Hop.PIX)
    assert (nic.hops["gpu:2"], nic.hops["gpu:4"], nic.hops["nic:2"]) == (Hop.PHB, Hop.SYS, Hop.SYS)


def test_the_counters_of_network_ports_are_read_again_and_all_else_stays(tmp_path: Path) -> None:
    machine = read(SCENARIOS["dgx1"], tmp_path)
    assert with_ports_now(machine, tmp_path) == machine
    counters = "sys/bus/pci/devices/0000:0a:00.0/infiniband/mlx5_1/ports/1/counters"
    write_files(tmp_path, {f"{counters}/symbol_error": 12})
    (found,) = find_after_watch(machine, History(), with_ports_now(machine, tmp_path), 1.0)
    assert (found.subject.text, found.evidence["rose"]) == ("nic:1", {"symbol_error": 12})


@pytest.mark.parametrize("name", ["lost_gpu", "lost_handle"])
def test_a_lost_gpu_is_reported_and_the_rest_goes_on(name: str) -> None:
    machine = machine_of(name)
    whole = machine_of("four")
    lost = machine.gpus[2]
    assert (lost.lost, lost.name, lost.pci_address) == (True, None, "0000:46:00.0")
    assert machine.missing["gpus[2].clocks_mhz.memory.now"] == "GPU_IS_LOST"
    assert machine.missing["links[1-2].p2p_read"] == "GPU_IS_LOST"
    for index in (0, 1, 3):
        assert leaves(machine.gpus[index]) | {"cuda_index": index} == leaves(whole.gpus[index])
    assert [link.hop for link in machine.links] == [link.hop for link in whole.links]
    assert machine.link(0, 1) == whole.link(0, 1)


def test_a_lost_gpu_keeps_what_sysfs_states_of_its_link() -> None:
    lost = machine_of("lost_gpu").gpus[2]
    assert (lost.pcie.gen_now, lost.pcie.width_now, lost.numa_node) == (3, 16, 0)


def test_gpus_that_sysfs_does_not_show_are_read_all_the_same(tmp_path: Path) -> None:
    with installed(FakeNvml(SCENARIOS["four"])):
        machine = read_machine(tmp_path)
    assert machine.driver.status == "ok"
    assert [gpu.name for gpu in machine.gpus] == ["NVIDIA Test-100"] * 4
    assert machine.missing["gpus[0].pcie.limiting_hop"] == "NOT_IN_PCI_TREE"
    assert machine.pci == ()
    assert {link.hop for link in machine.links} == {Hop.PIX}


def test_a_gpu_that_nvml_does_not_count_is_mentioned(tmp_path: Path) -> None:
    four = SCENARIOS["four"]
    write_tree(changed(four, gpus={3: {"kernel_driver": "vfio-pci"}}), tmp_path)
    machine = read(replace(four, gpus=four.gpus[:3]), tmp_path)
    assert (machine.driver.status, len(machine.gpus)) == ("ok", 3)
    assert machine.missing["pci[0000:47:00.0].gpu"] == "NOT_COUNTED_BY_NVML (kernel driver vfio-pci)"


def test_a_gpu_that_only_the_kernel_module_lists_is_mentioned(tmp_path: Path) -> None:
    """As where no PCI bus is shown."""
    four = SCENARIOS["four"]
    names = [f"proc/driver/nvidia/gpus/{gpu.address}/information" for gpu in four.gpus]
    write_files(tmp_path, dict.fromkeys(names, "Model: x"))
    machine = read(replace(four, gpus=four.gpus[:3]), tmp_path)
    reasons = {path: why for path, why in machine.missing.items() if path.startswith("pci[")}
    assert reasons == {"pci[0000:47:00.0].gpu": "NOT_COUNTED_BY_NVML (kernel driver nvidia)"}


@pytest.mark.parametrize(
    ("code", "status"),
    [(12, "library_missing"), (999, "failed")],
)
def test_without_nvml_the_gpus_are_those_of_the_bus(code: int, status: str, tmp_path: Path) -> None:
    scenario = SCENARIOS["dual_socket_4_4"]
    machine = read(scenario, tmp_path, FakeNvml(scenario, init_code=code))
    assert machine.driver.status == status
    assert machine.driver.detail
    assert [gpu.pci_address for gpu in machine.gpus] == [gpu.address for gpu in scenario.gpus]
    gpu = machine.gpus[5]
    assert (gpu.numa_node, gpu.pcie.gen_now, gpu.pcie.width_now, gpu.pcie.gen_max_host) == (1, 3, 16, 3)
    assert (gpu.name, gpu.nvlinks) == (None, None)
    assert Counter(link.hop for link in machine.links) == {Hop.SYS: 16, Hop.NODE: 8, Hop.PIX: 4}
    reason = machine.missing["gpus[5].clocks_mhz.memory.now"]
    assert reason == machine.missing["links[0-1].p2p_read"] == machine.missing["driver.version"]


def test_nvml_that_counts_nothing_with_a_card_on_the_bus_is_no_healthy_driver(tmp_path: Path) -> None:
    write_tree(changed(SCENARIOS["desktop"], gpus={0: {"kernel_driver": "vfio-pci"}}), tmp_path)
    machine = read(SCENARIOS["desktop"], tmp_path, FakeNvml(replace(SCENARIOS["desktop"], gpus=())))
    assert machine.driver.status == "other_driver"
    assert machine.missing["gpus[0].name"] == "NO_GPU_IN_NVML"


def test_nothing_on_the_bus_is_no_device(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/meminfo": "MemTotal: 1048576 kB"})
    with installed(FakeNvml(SCENARIOS["four"], init_code=12)):
        machine = read_machine(tmp_path)
    assert (machine.driver.status, machine.driver.detail, machine.gpus) == ("no_device", None, ())
    assert machine.host.memory_mib == 1024


def test_identical_cards_of_which_one_is_clocked_higher_have_no_certain_cuda_order(tmp_path: Path) -> None:
    faster = changed(SCENARIOS["four"], gpus={3: {"max_clocks": (1500, 1500, 1215, 1290)}})
    assert {gpu.cuda_index for gpu in read(faster, tmp_path).gpus} == {None}


def test_no_process_of_this_machine_is_looked_up_for_another_root(tmp_path: Path) -> None:
    own = changed(SCENARIOS["four"], gpus={0: {"processes": (ProcessSpec(os.getpid(), "compute", 1),)}})
    processes = read(own, tmp_path).gpus[0].processes
    assert processes is not None
    assert processes[0].user is None


def test_the_user_of_a_process_is_reported_while_it_lives_and_not_in_a_container() -> None:
    pids = (os.getpid(), 2**22 + 1)  # above the kernel's highest process number
    listed = tuple(ProcessSpec(pid, "compute", 1) for pid in pids)
    with installed(FakeNvml(changed(SCENARIOS["four"], gpus={0: {"processes": listed}}))):
        machine = read_here(Path("/"))
    own = pwd.getpwuid(os.getuid()).pw_name if machine.host.container == "none" else None
    assert [process.user for process in machine.gpus[0].processes or ()] == [own, None]


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has an NVIDIA driver")
def test_this_machine_is_read() -> None:
    machine = read_machine()
    assert machine.driver.status != "ok"
    assert machine.host.logical_cpus
    assert machine.host.kernel


def test_reading_a_machine_loads_no_tensorflow_and_no_screen_library() -> None:
    code = (
        "import sys\nfrom gputopo.probes import begin_reading\nwith begin_reading() as read:\n    read()\n"
        "print(sorted({'tensorflow', 'numpy', 'rich', 'cuda', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
