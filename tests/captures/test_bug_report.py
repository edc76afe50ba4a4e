"""nvidia-bug-report.log: each part is read by its own reader, and all of them are one machine."""

import pytest

from gputopo.captures import read_text
from gputopo.findings import find
from gputopo.values.errors import InputError
from gputopo.values.machine import Hop
from tests.captures.samples import GPUS, LSPCI_VERBOSE, OVERVIEW, TOPO
from tests.captures.test_host import LSCPU_2_37
from tests.captures.test_proc_nvidia import GPU, UUID, VERSION

HEAD = """\
Start of NVIDIA bug report log file.  Please include this file, along
with a detailed description of your problem, when reporting a graphics
driver bug via the NVIDIA Linux forum.

nvidia-bug-report.sh Version: 33950312

Date: Tue Mar  5 10:00:00 UTC 2024
uname: Linux box 5.15.0-91-generic
command line flags:
"""
RULE = "\n____________________________________________\n\n"
XID = f"[  100.000000] NVRM: Xid (PCI:{GPUS[1][:-2]}): 79, pid=12, GPU has fallen off the bus.\n"
KERNEL = f"[    0.000000] Linux version 5.15\n{XID}"


def file(name: str, text: str) -> str:
    return f"*** {name}\n*** ls: -r--r--r-- 1 root root 0 2024-03-05 10:00:00.000000000 +0000 {name}\n{text}"


def report(*parts: str) -> str:
    return RULE.join(["", HEAD, *parts])


WHOLE = report(
    file("/etc/issue", "Ubuntu 22.04 LTS \\n \\l\n"),
    file("/proc/driver/nvidia/./version", VERSION),
    file(
        "/proc/driver/nvidia/./gpus/0000:05:00.0/information", GPU.format(address=GPUS[0], uuid=UUID)
    ).replace("NVIDIA GeForce RTX 3090", "GeForce GTX 1070")
    + file("/proc/driver/nvidia/./warnings/README", "The NVIDIA graphics driver tries to detect\n"),
    f"/usr/bin/nvidia-smi\n\n{OVERVIEW}",
    f"/usr/bin/nvidia-smi topo -m\n\n{TOPO}",
    f"/usr/bin/lspci -vvv\n\n{LSPCI_VERBOSE}",
    f"/usr/bin/lscpu\n\n{LSCPU_2_37.replace('0-1,4-5', '0-3').replace('2-3,6-7', '4-7')}",
    f"/bin/dmesg\n\n{KERNEL}",
    file("/var/log/Xorg.0.log", "[     4.123] (--) Log file renamed\n[     4.123] X.Org X Server 1.21\n"),
    "base64 of nvidia-debugdump\n\n" + "QUJD\n" * 100,
)


def test_all_parts_are_one_machine() -> None:
    machine = read_text(WHOLE, origin="x")
    assert [gpu.pci_address for gpu in machine.gpus] == list(GPUS)
    assert [gpu.name for gpu in machine.gpus] == ["GeForce GTX 1070"] * 3
    assert [gpu.uuid for gpu in machine.gpus] == [UUID, None, None]
    assert [gpu.utilization_percent.gpu for gpu in machine.gpus] == [0] * 3
    assert [link.hop for link in machine.links] == [Hop.PIX, Hop.SYS, Hop.SYS]
    assert (machine.driver.version, machine.driver.kernel_module_version) == ("418.67", "535.104.05")
    assert machine.host.sockets == 2
    assert [event.code for event in machine.kernel_events] == [79]
    assert machine.unread == ()
    found = {one.id: one for one in find(machine)}
    assert found["gpu.lost"].subject.text == "gpu:1"
    assert "driver.version_mismatch" in found


def test_a_part_that_cannot_be_read_is_named_and_does_not_hide_the_others() -> None:
    cut = "\n".join(TOPO.splitlines()[:1])
    machine = read_text(report(f"/usr/bin/nvidia-smi topo -m\n\n{cut}\n", f"dmesg\n\n{KERNEL}"), origin="x")
    assert [event.code for event in machine.kernel_events] == [79]
    (unread,) = machine.unread
    assert unread.source == "nvidia-bug-report"
    assert unread.text.startswith("/usr/bin/nvidia-smi topo -m: no row for GPU0")


def test_a_report_without_the_gpus_is_refused_with_what_to_do() -> None:
    with pytest.raises(InputError, match="without a part that shows the GPUs") as error:
        read_text(report(file("/etc/issue", "Ubuntu\n")), origin="x")
    assert "as root" in error.value.hint


def gpu(bus: str) -> str:
    path = f"/proc/driver/nvidia/./gpus/0000:{bus}:00.0/information"
    return file(path, GPU.format(address=f"0000:{bus}:00.0", uuid=UUID.replace("0", bus[1])))


SMI = "==============NVSMI LOG==============\n\nDriver Version : 535.104.05\nAttached GPUs : 2\n" + "".join(
    f"GPU 00000000:{bus}:00.0\n    Product Name : NVIDIA GeForce RTX 3090\n"
    "    VBIOS Version : 94.02.42.00.0F\n    Performance State : P8\n    Utilization\n        GPU : 7 %\n"
    for bus in ("01", "02")
)
LIST = (
    "00:01.0 PCI bridge [0604]: Intel Corporation Device [8086:3420]\n"
    "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation Device [10de:2204] (rev a1)\n"
    "02:00.0 VGA compatible controller [0300]: NVIDIA Corporation Device [10de:2204] (rev a1)\n"
)
VERBOSE = "".join(
    f"0{bus}:00.0 VGA compatible controller: NVIDIA Corporation Device 2204 (rev a1)\n"
    "\tLnkCap: Port #0, Speed 8GT/s, Width x8\n\tLnkSta: Speed 2.5GT/s, Width x8\n"
    for bus in (1, 2)
)
TREE = "-[0000:00]-+-01.0-[01]----00.0\n           \\-02.0-[02]----00.0\n"


def test_parts_of_one_list_are_joined_and_contradict_nothing() -> None:
    text = report(
        file("/proc/driver/nvidia/./version", VERSION) + gpu("01") + gpu("02"),
        f'/usr/bin/lspci -d "10de:*" -v -xxx\n\n{VERBOSE}',
        f"/usr/bin/lspci -nn\n\n{LIST}",
        f"/usr/bin/lspci -t\n\n{TREE}",
        f"/usr/bin/nvidia-smi --query\n\n{SMI}\n/usr/bin/nvidia-smi --query --unit\n\n{SMI[:40]}\n",
    )
    machine = read_text(text, origin="x")
    assert (machine.contradictions, machine.unread) == ((), ())
    assert [one.pci_address for one in machine.gpus] == ["0000:01:00.0", "0000:02:00.0"]
    assert [one.vbios_version for one in machine.gpus] == ["94.02.42.00.0F"] * 2
    assert [link.hop for link in machine.links] == [Hop.PHB]
    assert len(machine.samples) < 2


def test_logs_of_x_and_of_builds_are_skipped_by_their_titles() -> None:
    noise = f"NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n{SMI}"
    titles = (
        "*** /var/log/Xorg.0.log",
        "*** /var/lib/dkms/nvidia/1/log/make.log",
        "journalctl -b -0 _COMM=Xorg",
    )
    machine = read_text(
        report(*(f"{title}\n\n{noise}" for title in titles), f"dmesg\n\n{KERNEL}"), origin="x"
    )
    assert ([event.code for event in machine.kernel_events], machine.gpus) == ([79], ())
    assert machine.kernel_events[0].pci_address == GPUS[1]


def test_kernel_messages_of_all_logs_are_read_and_foreign_lines_are_known() -> None:
    text = report(
        f"/usr/bin/nvidia-smi --query\n\n{SMI}",
        "Scanning kernel log files for NVIDIA kernel messages:\n\n  /var/log/kern.log:\n"
        "11\u6708 16 11:33:45 box kernel: NVRM: API mismatch: the client has the version 1.2, but\n"
        "11\u6708 16 11:33:45 box kernel: NVRM: this kernel module has the version 1.3.\n",
        "journalctl -b -0\n\n-- No entries --\n",
    )
    machine = read_text(text, origin="x")
    (event,) = machine.kernel_events
    assert event.text.endswith("module has the version 1.3.")
    assert machine.unread == ()
    before = read_text(report(f"/usr/bin/journalctl -k -b -1\n\n{KERNEL}"), origin="x")
    assert [event.earlier for event in before.kernel_events] == [True]
