from pathlib import Path

import psutil
import pytest

from gputopo.probes import read_tree
from gputopo.values.machine import Host
from tests.kit.machines import read_machine
from tests.kit.scenarios import SCENARIOS
from tests.kit.sysfs import write_files, write_function, write_tree

INTEL = "model name : Intel(R)  Xeon(R)   CPU\nflags : fpu sse{extra}\n"


def read_host(root: Path) -> Host:
    return read_tree(root).host


def test_a_two_socket_box_is_read_in_full(tmp_path: Path) -> None:
    host = read_host(write_tree(SCENARIOS["dual_socket_4_4"], tmp_path))
    assert host.cpu_model == "Intel(R) Xeon(R) CPU E5-2630 v4 @ 2.20GHz"
    assert (host.sockets, host.physical_cores, host.logical_cpus) == (2, 36, 72)
    assert (host.memory_mib, host.kernel) == (64000, "6.1.0-test")
    assert host.numa_nodes is not None
    first, second = host.numa_nodes
    assert (first.index, first.cpus, first.memory_mib, first.distances) == (0, "0-17,36-53", 32000, (10, 21))
    assert (second.index, second.cpus, second.distances) == (1, "18-35,54-71", (21, 10))
    assert (host.iommu, host.container, host.virtual_machine) == ("off", "none", "none")


def test_an_empty_root_reports_nothing_and_never_asks_the_live_machine(tmp_path: Path) -> None:
    assert read_host(tmp_path) == Host()


# The machine id of libsystemd's tests for sd_id128_get_machine_app_specific.
MACHINE_ID = "2e074e9b299c41a59923c51ae16f279b"


def test_a_fingerprint_is_the_application_specific_id_of_systemd(tmp_path: Path) -> None:
    write_files(tmp_path, {"etc/machine-id": f"{MACHINE_ID}\n"})
    # systemd-id128 machine-id --app-specific=e1e0b90720c541209919c50ec84745d6
    assert read_host(tmp_path).fingerprint == "daf32e27e5a043139595a4c23901de36"


@pytest.mark.parametrize("text", ["uninitialized\n", MACHINE_ID[:-1]])
def test_without_a_machine_id_there_is_no_fingerprint(text: str, tmp_path: Path) -> None:
    write_files(tmp_path, {"etc/machine-id": text})
    assert read_host(tmp_path).fingerprint is None


def test_this_machine_agrees_with_psutil() -> None:
    host = read_machine().host
    assert host.logical_cpus == psutil.cpu_count()
    assert host.memory_mib == psutil.virtual_memory().total // 2**20
    assert host.kernel


def test_a_cpu_that_is_offline_does_not_count(tmp_path: Path) -> None:
    cpus = tmp_path / "sys/devices/system/cpu"
    for number in (0, 1):
        write_files(cpus / f"cpu{number}/topology", {"physical_package_id": 0, "core_id": number})
    (cpus / "cpu2").mkdir()
    (cpus / "cpufreq").mkdir()
    host = read_host(tmp_path)
    assert (host.sockets, host.physical_cores, host.logical_cpus) == (1, 2, 2)


def test_a_memory_node_without_cpus_keeps_its_place(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/devices/system/node"
    write_files(nodes / "node0", {"cpulist": "0-71", "meminfo": "Node 0 MemTotal: 1048576 kB"})
    write_files(nodes / "node10", {"cpulist": ""})
    write_files(nodes / "node2", {"cpulist": ""})
    host = read_host(tmp_path)
    assert host.numa_nodes is not None
    assert [(node.index, node.cpus) for node in host.numa_nodes] == [(0, "0-71"), (2, ""), (10, "")]
    assert host.numa_nodes[0].memory_mib == 1024


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("processor : 0\nmodel name\t: AMD EPYC 7742 64-Core Processor\n", "AMD EPYC 7742 64-Core Processor"),
        ("processor : 0\ncpu\t\t: POWER9, altivec supported\nclock : 3800MHz\n", "POWER9, altivec supported"),
        ("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd4f\n", "ARM implementer 0x41 part 0xd4f"),
        ("rubbish", None),
    ],
)
def test_the_cpu_is_named_on_every_architecture(tmp_path: Path, cpuinfo: str, model: str | None) -> None:
    write_files(tmp_path, {"proc/cpuinfo": cpuinfo})
    assert read_host(tmp_path).cpu_model == model


@pytest.mark.parametrize(
    ("units", "types", "cmdline", "state"),
    [
        ((), (), "intel_iommu=on", "off"),
        (("dmar0",), ("identity", "identity"), "", "passthrough"),
        (("dmar0",), ("identity", "DMA"), "", "translated"),
        (("ivhd0",), (), "quiet iommu=pt", "passthrough"),
        (("dmar0",), (), "intel_iommu=on,sm_on", "translated"),
        (("dmar0",), (), "quiet", None),
    ],
)
def test_the_state_of_the_iommu_is_that_of_the_gpus_groups_or_of_the_command_line(
    tmp_path: Path, units: tuple[str, ...], types: tuple[str, ...], cmdline: str, state: str | None
) -> None:
    (tmp_path / "sys/class/iommu").mkdir(parents=True)
    for unit in units:
        (tmp_path / "sys/class/iommu" / unit).mkdir()
    write_files(tmp_path, {"proc/cmdline": cmdline})
    for number, kind in enumerate(types):
        gpu = write_function(tmp_path, f"pci0000:00/0000:0{number}:00.0", "10de", "20b0", "030200")
        write_files(gpu / "iommu_group", {"type": kind})
    assert read_host(tmp_path).iommu == state


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"proc/1/cgroup": "0::/init.scope"}, "none"),
        ({".dockerenv": "", "proc/1/cgroup": "0::/"}, "docker"),
        ({"run/.containerenv": "", "proc/1/cgroup": "0::/"}, "podman"),
        ({"proc/1/cgroup": "12:cpu:/kubepods/besteffort/pod1/docker-2"}, "kubernetes"),
        ({"run/systemd/container": "lxc", "proc/1/cgroup": "0::/"}, "lxc"),
        ({}, None),
    ],
)
def test_the_kind_of_container_is_shown(tmp_path: Path, files: dict[str, object], kind: str | None) -> None:
    write_files(tmp_path, files)
    assert read_host(tmp_path).container == kind


@pytest.mark.parametrize(
    ("extra", "vendor", "product", "kind"),
    [
        ("", "Dell Inc.", "PowerEdge R740", "none"),
        ("", "Amazon EC2", "p4d.metal", "none"),
        (" hypervisor", "Amazon EC2", "p4d.24xlarge", "kvm"),
        (" hypervisor", "Microsoft Corporation", "Virtual Machine", "hyper-v"),
        (" hypervisor", "VMware, Inc.", "VMware7,1", "vmware"),
        (" hypervisor", "", "", "unknown"),
    ],
)
def test_the_kind_of_virtual_machine_is_reported(
    tmp_path: Path, extra: str, vendor: str, product: str, kind: str
) -> None:
    dmi = "sys/class/dmi/id"
    write_files(tmp_path, {f"{dmi}/sys_vendor": vendor, f"{dmi}/product_name": product})
    write_files(tmp_path, {"proc/cpuinfo": INTEL.format(extra=extra)})
    assert read_host(tmp_path).virtual_machine == kind


def test_wsl_is_reported_by_its_kernel(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2"})
    assert read_host(tmp_path).virtual_machine == "wsl"
