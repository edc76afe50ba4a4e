"""Lines of the kernel log: read in every form that dmesg, journalctl and syslog have, alone or not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.findings import find
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu, KernelEvent, Machine, PciNode
from tests.captures.samples import ALL, OVERVIEW, in_turn
from tests.report.shown import answer_of

XID_79 = "NVRM: Xid (PCI:0000:05:00): 79, pid=1234, name=python, GPU has fallen off the bus."
# What stands before a message, and the time that it shows.
PREFIXES = {
    "dmesg": ("[ 1234.567890] ", "1234.567890 s"),
    "dmesg, caller": ("[   12.000001] [T4711] ", "12.000001 s"),
    "dmesg -T": ("[Tue Mar  5 10:01:02 2024] ", "2024-03-05T10:01:02"),
    "dmesg -r": ("<3>[ 1234.567890] ", "1234.567890 s"),
    "dmesg -H": ("[  +0.000012] ", None),
    "dmesg --time-format iso": ("2024-03-05T10:01:02,123456+00:00 ", "2024-03-05T10:01:02"),
    "journalctl -k": ("Mar 05 10:01:02 node7 kernel: ", "Mar 05 10:01:02"),
    "journalctl -o short-full": ("Tue 2024-03-05 10:01:02 UTC node7 kernel: ", "2024-03-05T10:01:02"),
    "kern.log, ISO": ("2024-03-05T10:01:02.123456+01:00 node7 kernel: [  1.000000] ", "2024-03-05T10:01:02"),
    "bare": ("", None),
}


def events(text: str) -> tuple[KernelEvent, ...]:
    return read_text(text, origin="log").kernel_events


def ids(machine: Machine) -> dict[str, str]:
    return {found.id: found.severity for found in find(machine)}


@pytest.mark.parametrize("form", PREFIXES)
def test_an_xid_is_read_with_its_time(form: str) -> None:
    prefix, time = PREFIXES[form]
    (event,) = events(f"{prefix}{XID_79}\n")
    assert (event.kind, event.code, event.pci_address) == ("xid", 79, "0000:05:00.0")
    assert (event.time, event.last_time, event.count) == (time, time, 1)
    assert event.text.endswith("GPU has fallen off the bus.")


def test_a_line_in_the_middle_of_a_capture_does_not_end_it() -> None:
    lines = ALL["topo"].splitlines()
    text = "\n".join([*lines[:2], f"[  1.000000] {XID_79}", *lines[2:]])
    bare, both = read_text(ALL["topo"], origin="log"), read_text(text, origin="log")
    assert (both.gpus, both.links, both.nics) == (bare.gpus, bare.links, bare.nics)
    assert ids(both)["gpu.lost"] == "error"


LINES = {
    "NVRM: Xid (0000:05:00): 13, 0003 00000000": ("xid", 13, None, "0000:05:00.0"),
    "NVRM: Xid (PCI:0000:05:00.0): 31, pid=1, Ch 00000008": ("xid", 31, None, "0000:05:00.0"),
    "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.": ("lost", None, None, "0000:05:00.0"),
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up": (
        "sxid", 20034, "fatal", "0000:c1:00.0",
    ),
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 45 egress error (First)": (
        "sxid", 12028, "nonfatal", "0000:05:00.0",
    ),
    "nvidia 0000:05:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)": (
        "aer", None, "corrected", "0000:05:00.0",
    ),
    "nvidia 0000:05:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer": (
        "aer", None, "fatal", "0000:05:00.0",
    ),
    "pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer": (
        "aer", None, "nonfatal", "0000:00:02.0",
    ),
    "pcieport 0000:00:02.0: AER: Multiple Corrected error received: 0000:05:00.0": (
        "aer", None, "corrected", "0000:05:00.0",
    ),
    "pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: id=0010": (
        "aer", None, "fatal", "0000:00:02.0",
    ),
    "pcieport 0000:00:02.0: DPC: containment event, status:0x1f01 source:0x0000": (
        "pcie", None, None, "0000:00:02.0",
    ),
    "pcieport 0000:00:02.0: pciehp: Slot(3): Link Down": ("pcie", None, None, "0000:00:02.0"),
    "nvidia 0000:05:00.0: Unable to change power state from D3cold to D0, device inaccessible": (
        "pcie", None, None, "0000:05:00.0",
    ),
    "NVRM: GPU 0000:05:00.0: RmInitAdapter failed! (0x22:0x56:667)": ("nvrm", None, None, "0000:05:00.0"),
    "NVRM: API mismatch: the client has the version 515.65.01, but": ("nvrm", None, None, None),
    "NVRM: knvlinkUpdateLinkMask: Failed to update Rx Detect Link mask!": ("nvlink", None, None, None),
    "NVRM: Xid (PCI:0000:05:00): 154, action changed from 0x0 (None) to 0x1 (GPU Reset Required)": (
        "xid", 154, "gpu reset required", "0000:05:00.0",
    ),
    "XidCriticalError: Xid=94 on Device=GPU-1a, the device will go unhealthy.": ("xid", 94, None, None),
    "detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 port 61": (
        "sxid", 12028, "nonfatal", "0000:86:00.0",
    ),
    "nv-fabricmanager[5]: NVLink connections failed to train: GPU 3": ("nvlink", None, None, None),
    "[ERROR] [tid 7] Fabric Manager detected GPU NVL Fatal error on :": ("nvlink", None, "fatal", None),
    "[ERROR] [tid 7] failed to find the GPU handle 54 in the multicast team": ("nvrm", None, None, None),
}  # fmt: skip


@pytest.mark.parametrize("message", LINES)
def test_each_error_is_read(message: str) -> None:
    (event,) = events(f"[  1.000000] {message}\n")
    assert (event.kind, event.code, event.severity, event.pci_address) == LINES[message]


OTHER_LINES = (
    "Linux version 5.15.0-91-generic (buildd@lcy02) (gcc 11.4.0) #101-Ubuntu SMP",
    "  node   0: [mem 0x0000000000001000-0x000000000009ffff]",
    "pci 0000:01:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at "
    "0000:00:01.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
    "NVRM: GPU at PCI:0000:05:00: GPU-11111111-2222-3333-4444-555555555555",
    "nvidia 0000:05:00.0:   device [10de:2204] error status/mask=00000001/0000a000",
    "nvidia 0000:05:00.0:    [ 0] RxErr                  (First)",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Severity 1 Engine instance 30",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Data {0x00000000, 0x00000000}",
    "pcieport 0000:00:02.0: AER: enabled with IRQ 26",
    "NVRM: again.",
    "NVRM: the NVIDIA kernel module is unloaded.",
)


def test_other_lines_of_the_kernel_are_no_errors_and_not_listed() -> None:
    text = "".join(f"[  1.000000] {message}\n" for message in OTHER_LINES)
    machine = read_text(text, origin="log")
    assert (machine.source, machine.kernel_events, machine.unread) == ("kernel log", (), ())


SEVERAL_LINES = {
    "NVRM: API mismatch: the client has the version 1.2, but\n"
    "NVRM: this kernel module has the version 1.3.": (
        "nvrm",
        "the version 1.2, but this kernel module has the version 1.3",
    ),
    "NVRM: The NVIDIA GPU 0000:05:00.0\nNVRM: (PCI ID: 10de:2204)\nNVRM: installed in this system has\n"
    "NVRM: fallen off the bus and is not responding.": ("lost", "has fallen off the bus"),
    "NVRM: The NVIDIA GPU 0000:05:00.0 (PCI ID: 10de:2bb1)\n"
    "NVRM: installed in this system is not supported by the\nNVRM: NVIDIA 550.163.01 driver release.": (
        "nvrm",
        "is not supported by the NVIDIA 550.163.01 driver release",
    ),
}


STAMPS = ("[ 1.000000] ", "11\u6708 16 11:33:45 box kernel: ", "nov. 16 11:33:45 box kernel: ")


@pytest.mark.parametrize(("message", "stamp"), in_turn(SEVERAL_LINES, STAMPS))
def test_a_message_of_several_lines_is_one(message: str, stamp: str) -> None:
    (event,) = events("".join(f"{stamp}{line}\n" for line in message.splitlines()))
    assert (event.kind, SEVERAL_LINES[message][1] in event.text) == (SEVERAL_LINES[message][0], True)


def test_the_fabric_managers_log_has_its_times_and_names_itself() -> None:
    error = "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 port 33"
    text = (
        f"[Jul 23 2024 07:53:50] [INFO] [tid 8] Connected.\n[Jul 23 2024 07:53:55] [ERROR] [tid 8] {error}\n"
    )
    machine = read_text(text, origin="log")
    (found,) = find(machine)
    assert (found.severity, machine.unread) == ("error", ())
    assert "SXid 20034 in the fabric manager's log (at 2024-07-23T07:53:55)" in found.says


def test_a_fabric_manager_without_switches_is_no_fault() -> None:
    text = (
        "Sep 18 03:19:01 n nvidia-fabricmanager-start.sh[6]: query failed with error:WARNING Nothing to do "
        "[NV_WARN_NOTHING_TO_DO]\nSep 18 03:19:01 n systemd[1]: nvidia-fabricmanager.service: Failed\n"
    )
    machine = read_text(text, origin="log")
    (found,) = find(machine)
    assert (found.id, found.severity) == ("driver.kernel_error", "info")
    assert answer_of(machine, found).startswith("the fabric manager found no NVSwitch")


def test_errors_of_a_port_are_reported_where_the_log_is_all_there_is() -> None:
    error = "pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer\n"
    (found,) = find(read_text(f"[  1.000000] {error}", origin="log"))
    assert (found.id, found.severity, "0000:00:02.0" in found.says) == ("pcie.errors", "warning", True)
    assert find(read_text(f"[  1.000000] {error.replace('pcieport', 'nvme')}", origin="log")) == ()


def test_a_warning_of_nvidia_smi_about_the_inforom_is_an_event_of_its_gpu() -> None:
    machine = read_text(f"{OVERVIEW}WARNING: infoROM is corrupted at gpu 0000:05:00.0\n", origin="x")
    (event,) = machine.kernel_events
    assert (event.text, event.pci_address) == ("infoROM is corrupted", "0000:05:00.0")
    assert len(machine.gpus) == 3


_LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build"
_STAMPS = "Mar  5 10:01:02 n kernel: [ 9000.000000] ", "Mar  6 09:00:00 n kernel: [   12.000000] "


@pytest.mark.parametrize(
    ("text", "earlier"),
    [
        (f"Mar 05 10:01:02 n kernel: {XID_79}\n-- Boot 0123456789abcdef --\n", True),
        (f"[ 9000.000000] {XID_79}\n[    0.000000] Linux version 6.8.0 (gcc)\n", True),
        (f"[ 9000.000000] {XID_79}\n[ 9200.000000] {_LOADED}\n", True),
        (f"[ 9000.000000] {XID_79}\n[ 9000.100000] {_LOADED}\n", False),  # in this load
        (f"[ 9000.000000] {XID_79}\n[ 9000.100000] nvidia-nvlink: Nvlink Core is being initialized\n", True),
        (f"{_STAMPS[0]}{XID_79}\n{_STAMPS[1]}usb 1-1: new device\n", True),
        (f"{_STAMPS[1]}{XID_79}\n{_STAMPS[0]}usb 1-1: new device\n", False),  # an older file behind it
        (f"$ journalctl -k -b -1 | grep Xid\nMar 05 10:01:02 n kernel: {XID_79}\n", True),
        (f"$ journalctl -k -b -1\n$ sudo dmesg\n[ 9000.000000] {XID_79}\n", False),
        (f"-- Journal begins at Tue 2024-03-05 --\nMar 05 10:01:02 n kernel: {XID_79}\n", False),
    ],
)
def test_an_event_before_the_last_boot_or_load_of_the_module_is_an_earlier_one(
    text: str, earlier: bool
) -> None:
    machine = read_text(text, origin="log")
    (event,), (finding,) = machine.kernel_events, find(machine)
    assert (event.earlier, event.count, machine.unread) == (earlier, 1, ())
    assert (finding.id, finding.severity) == (("driver.xid", "warning") if earlier else ("gpu.lost", "error"))


def test_an_event_that_came_again_since_the_boot_is_one_of_this_boot() -> None:
    text = f"{_STAMPS[0]}{XID_79}\n{_STAMPS[0]}{XID_79}\n{_STAMPS[1]}{XID_79}\n"
    machine = read_text(text, origin="log")
    assert [(event.earlier, event.count) for event in machine.kernel_events] == [(True, 2), (False, 1)]
    assert [finding.id for finding in find(machine)] == ["gpu.lost"]


@pytest.mark.parametrize(
    ("name", "stamp"), [("topo", "[ 1234.567890] "), ("nvlink -s", "[Tue Mar  5 10:01:02 2024] ")]
)
def test_a_capture_with_a_time_before_each_line_is_no_kernel_log(name: str, stamp: str) -> None:
    stamped = "".join(f"{stamp}{line}\n" for line in ALL[name].splitlines())
    machine = read_text(f"{stamped}[ 1.000000] {XID_79}\n", origin="log")
    bare = read_text(ALL[name], origin="log")
    assert (machine.gpus, machine.links) == (bare.gpus, bare.links)
    assert [event.code for event in machine.kernel_events] == [79]


def test_errors_of_one_kind_are_counted() -> None:
    text = "".join(f"[ {at}.000000] {XID_79}\n" for at in (100, 200, 399))
    (event,) = events(text)
    assert (event.count, event.time, event.last_time) == (3, "100.000000 s", "399.000000 s")


def test_what_a_port_receives_and_the_error_of_its_device_are_one() -> None:
    text = (
        "[ 1.000000] pcieport 0000:00:02.0: AER: Corrected error received: 0000:05:00.0\n"
        "[ 1.000001] nvidia 0000:05:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer\n"
    )
    (event,) = events(text)
    assert (event.pci_address, event.device_driver, event.count) == ("0000:05:00.0", "nvidia", 1)


GPU_0 = Gpu(index=3, pci_address="00000000:05:00.0")


TREE = (
    PciNode(address="0000:00:02.0", root="pci0000:00", kind="bridge"),
    PciNode(address="0000:05:00.0", root="pci0000:00", parent="0000:00:02.0", kind="gpu"),
)


FOUND = {
    XID_79: {"gpu.lost": "error"},
    "NVRM: Xid (PCI:0000:05:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x4505c6 0x0)": {
        "driver.xid": "error"
    },
    "NVRM: Xid (PCI:0000:05:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 08 (0x0 0x0)": {
        "driver.xid": "warning"
    },
    "NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot "
    "Required)": {"driver.xid": "error"},
    "NVRM: Xid (PCI:0000:05:00): 31, pid=1": {"driver.xid": "warning"},
    "NVRM: Xid (PCI:0000:05:00): 999, pid=1": {"driver.xid": "warning"},
    "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.": {"gpu.lost": "error"},
    "NVRM: GPU 0000:05:00.0: RmInitAdapter failed! (0x22:0x56:667)": {"driver.kernel_error": "error"},
    "nvidia 0000:05:00.0: PCIe Bus Error: severity=Corrected": {"pcie.errors": "info"},
    "nvidia 0000:05:00.0: PCIe Bus Error: severity=Uncorrected (Fatal)": {"pcie.errors": "error"},
    "pcieport 0000:00:02.0: DPC: containment event, status:0x1f01": {"pcie.errors": "warning"},
    "pcieport 0000:80:02.0: DPC: containment event, status:0x1f01": {},
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30": {"nvlink.errors": "error"},
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 4": {"nvlink.errors": "warning"},
}


@pytest.mark.parametrize("message", FOUND)
def test_each_error_is_a_finding_of_its_gpu(message: str) -> None:
    log = read_text(f"[ 1.000000] {message}\n", origin="log")
    machine = Machine(source="x", gpus=(GPU_0,), pci=TREE, kernel_events=log.kernel_events)
    assert ids(machine) == FOUND[message]
    assert {one.subject.text for one in find(machine)} <= {"gpu:3", "machine"}


@pytest.mark.parametrize(
    "text", ["GPU0 is slow\n", "See NVRM in dmesg\n", "[ 1.000000] usb 1-1: new device\n"]
)
def test_other_texts_are_no_kernel_log(text: str) -> None:
    with pytest.raises(InputError, match="in an unknown format"):
        read_text(text, origin="log")


@given(
    st.lists(st.tuples(st.sampled_from(sorted(PREFIXES)), st.sampled_from(sorted(LINES)))),
    st.text(max_size=200),
)
def test_any_log_is_read_line_by_line(lines: list[tuple[str, str]], tail: str) -> None:
    text = "".join(f"{PREFIXES[form][0]}{message}\n" for form, message in lines) + tail
    first = f"[ 1.000000] {XID_79}\n"  # so that any text is a kernel log
    kinds = {event.kind for event in events(first + text)}
    assert kinds >= {LINES[message][0] for _, message in lines}
