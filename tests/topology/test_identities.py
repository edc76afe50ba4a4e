from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.topology import program_name, without_identities
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth, CopyRate, Samples
from gputopo.values.ends import End
from gputopo.values.machine import Contradiction, Driver, Gpu, GpuProcess, Machine, Nccl, Nic, PciNode, Unread
from tests import there
from tests.kit.machines import read
from tests.kit.scenarios import SCENARIOS, ProcessSpec, changed

UUID = "GPU-6d5cba85-0b1e-4d2f-a0b3-0f7f4c1d2e3f"


def scrubbed(text: str) -> str:
    """A text of a machine without the identities in it."""
    bare = without_identities(Machine(source="x", missing={"gpus[0].name": text}))
    return bare.missing["gpus[0].name"]


def scrubbed_line(text: str) -> str:
    """A line of a capture, alike."""
    line = Unread(source="x", line=1, text=text)
    return without_identities(Machine(source="x", unread=(line,))).unread[0].text


def test_the_forms_that_identities_have_are_left_out() -> None:
    cases: list[tuple[str, str]] = [
        (f"{UUID} is GPU 0", "[left out] is GPU 0"),
        ("MIG-6D5CBA85-0b1e-4d2f-a0b3-0f7f4c1d2e3f", "[left out]"),
        ("6d5cba85-0b1e-4d2f-a0b3-0f7f4c1d2e3f", "[left out]"),
        ("link/ether 52:54:00:ab:cd:ef brd", "link/ether [left out] brd"),
        ("node e41d:2d03:00f2:9bf0", "node [left out]"),
        ("enx525400abcdef", "enx[left out]"),
        ("/home/jane/topo.txt", "/home/[left out]/topo.txt"),
        (r"C:\Users\Jane Doe\smi.xml", r"C:\Users\[left out]\smi.xml"),
        (r"c:\users\jane\smi.xml", r"c:\users\[left out]\smi.xml"),
        (r'{"path": "C:\\Users\\jane\\smi.xml"}', r'{"path": "C:\\Users\[left out]\\smi.xml"}'),
    ]
    for text, kept in cases:
        assert scrubbed(text) == kept


def test_what_describes_the_machine_stays() -> None:
    for text in [
        "0000:05:00.0",
        "00000000:0A:00.0",
        "NVML: DRIVER_NOT_LOADED; /dev/nvidia0 is not there",
        "GPU0\t X \tPIX\t0-9,20-29",
        "-[0000:00]-+-00.0-[01-05]--",
    ]:
        assert scrubbed(text) == text


def test_a_line_that_is_labelled_as_an_identity_is_left_out_whatever_its_form() -> None:
    for line in [
        "<serial>0324018045603</serial>",
        "Serial Number : 1",
        "host_hash=0x1",
        "GPU UUID: x",
        "User name: jane",
    ]:
        assert scrubbed_line(line) == "[left out]"


def test_a_process_is_its_program() -> None:
    cases: list[tuple[str, str | None, str | None]] = [
        ("/usr/bin/python3 /home/jane/train.py --lr 1", None, "python3"),
        ("/home/jane doe/venv/bin/python train.py", None, None),
        ("/Users/jane", None, None),
        ("/opt/jane", "jane", None),
        (r"C:\Program Files\App\app.exe", None, "app.exe"),
        (r"C:\App\app.exe --as jane C:\Users\jane\data", None, "app.exe"),
        (r'"C:\Program Files\App\App.EXE" /user jane', None, "App.EXE"),
        (r"\\server\jane doe\app.exe", None, "app.exe"),
        (r"C:\Users\Jane Doe\app", None, None),
        (r"python train.py --pattern a\b --as jane", None, "python"),
        ("   ", None, None),
        ("/usr/lib/xorg/Xorg", "root", "Xorg"),
    ]
    for command, user, name in cases:
        assert program_name(command, user) == name


@given(st.text())
def test_scrubbing_twice_changes_nothing_and_no_text_breaks_it(text: str) -> None:
    once = scrubbed(text)
    assert scrubbed(once) == once
    name = program_name(text)
    assert name is None or not {"/", "\\"} & set(name)


def test_everything_that_can_hold_an_identity_is_cleared() -> None:
    secret = f"{UUID} /home/jane/x 52:54:00:ab:cd:ef"
    machine = Machine(
        source="/home/jane/topo.txt + nccl xml",
        driver=Driver(status="failed", detail=secret),
        gpus=(
            Gpu(
                index=0,
                uuid=UUID,
                name="NVIDIA A",
                processes=(GpuProcess(pid=1, name="/home/jane/bin/train", user="jane", memory_mib=5),),
            ),
            Gpu(index=1, uuid=UUID),
        ),
        nics=(Nic(index=0, name="enx525400abcdef"), Nic(index=1, name="mlx5_0")),
        pci=(PciNode(address="0000:01:00.0", root="pci0000:00", name=secret),),
        bandwidth=Bandwidth(
            source="live",
            samples=Samples((CopyRate(kind="h2d", source=End("host"), destination=End("gpu:0"), bytes=5),)),
            notes=(secret,),
        ),
        missing={"gpus[0].name": secret},
        contradictions=(
            Contradiction(fact="gpus[0].uuid", said={"a": "short", "/home/jane/b": "shorter"}),
            Contradiction(fact="links[0-1].hop", said={"nvml": "PIX", "sysfs": "PHB"}),
        ),
        unread=(
            Unread(source="/home/jane/q.txt", line=3, text="Serial Number: 0324"),
            Unread(source="q.txt", line=4, text=secret),
        ),
        nccl=Nccl(settings=("NCCL_COMM_ID=10.9.8.7:42",), warnings=("Connect to 10.9.8.7<42> failed",)),
    )
    text = schema.encode(without_identities(machine)).decode()
    for word in ("jane", "6d5cba85", "52:54:00", "525400", "0324", "short", "10.9.8.7"):
        assert word not in text
    bare = without_identities(machine)
    assert bare.contradictions[1] == machine.contradictions[1]
    assert (bare.gpus[0].name, bare.nics[1].name) == ("NVIDIA A", "mlx5_0")
    assert bare.gpus[0].processes == (GpuProcess(pid=1, name="train", memory_mib=5),)
    assert bare.unread[0].line == 3
    assert bare.bandwidth is not None
    assert bare.bandwidth.samples == there(machine.bandwidth).samples
    assert bare.bandwidth.notes == ("[left out] /home/[left out]/x [left out]",)


@pytest.mark.parametrize("name", ["7gforce", "dgx1"])
def test_a_live_machine_loses_its_identities_and_nothing_else(name: str, tmp_path: Path) -> None:
    process = ProcessSpec(9, "compute", 1 << 20, "/home/jane doe/venv/bin/python /home/jane/train.py")
    scenario = changed(SCENARIOS[name], gpus={0: {"processes": (process,)}})
    whole = read(scenario, tmp_path)
    bare = without_identities(whole)
    text = schema.encode(bare).decode()
    assert "jane" not in text
    assert "GPU-0" not in text
    assert (bare.links, bare.host, bare.pci, bare.missing) == (
        whole.links,
        whole.host,
        whole.pci,
        whole.missing,
    )
    assert [gpu.clocks_mhz for gpu in bare.gpus] == [gpu.clocks_mhz for gpu in whole.gpus]
