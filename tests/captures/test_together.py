"""Captures of one machine in several formats: recognised by content, merged, differences reported."""

import re
import time
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import load, merge, read_text
from gputopo.values.errors import GputopoError
from gputopo.values.machine import Hop, Machine, Nic
from tests.benchmarks import bench_fuzz
from tests.captures import samples

SHARED = Path(__file__).parents[3] / "shared" / "captures"
ROOMS = ("topo", "nccl_xml", "other", "smi_xml", "smi_text")
# An error text of nvidia-smi, a paste that contradicts itself, rows of a table without titles.
REFUSED = (
    "windows_geforce-rtx-2080-super_591.86_nvidia_gpu_exporter.txt",
    "autonomys-docs",
    "md-table-pcie",
    "query-gpu-csv-3gpu",
)
SOURCES = {
    "nvidia-smi": "nvidia-smi",
    "topo": "nvidia-smi topo",
    "nccl": "nccl xml",
    "lspci -tv": "lspci -tv",
    "lspci -vvv": "lspci -vvv",
    "nvlink -s": "nvidia-smi nvlink",
    "topo -p2p": "nvidia-smi topo -p2p",
    "TensorFlow 1": "tensorflow log",
    "TensorFlow 2": "tensorflow log",
    "TensorFlow created": "tensorflow log",
}


@cache
def read(name: str) -> Machine:
    return read_text(samples.ALL[name], origin=name)


def test_the_content_shows_the_format() -> None:
    assert {name: read(name).source for name in samples.ALL} == SOURCES


@pytest.mark.parametrize("places", [1, 3])
def test_two_captures_of_one_machine_do_not_contradict_one_another(places: int) -> None:
    names = sorted(samples.ALL)
    for first, second in zip(names, names[places:] + names[:places], strict=True):
        merged = merge([read(first), read(second)])
        assert (first, second, merged.contradictions, len(merged.gpus)) == (first, second, (), 3)


def test_one_machine_gathers_what_each_capture_knows() -> None:
    merged = merge([read(name) for name in ("topo", "topo -p2p", "nvlink -s", "lspci -vvv")])
    assert merged.contradictions == ()
    assert [link.hop for link in merged.links] == [Hop.PIX, Hop.SYS, Hop.SYS]
    assert [link.p2p_read for link in merged.links] == [
        "OK",
        "TOPOLOGY_NOT_SUPPORTED",
        "TOPOLOGY_NOT_SUPPORTED",
    ]
    assert [gpu.uuid is not None for gpu in merged.gpus] == [True] * 3
    assert [len(gpu.nvlinks or ()) for gpu in merged.gpus] == [2, 2, 2]
    assert [gpu.pci_address for gpu in merged.gpus] == list(samples.GPUS)
    assert [gpu.pcie.limiting_hop for gpu in merged.gpus] == [None, "0000:04:10.0", None]
    assert merged.host.acs == "on"


def test_tools_that_list_differently_many_network_cards_do_not_contradict_one_another() -> None:
    more = re.sub("05.0  Intel.*", "05.0  Intel Corporation Ethernet Controller X710", samples.LSPCI_TREE)
    assert merge([read("topo"), read_text(more, origin="x")]).contradictions == ()
    one = read("topo")
    two = msgspec.structs.replace(one, nics=(*one.nics, Nic(index=1, name="mlx5_1")))
    assert [set(found.said.values()) for found in merge([one, two]).contradictions] == [{"1 NIC", "2 NICs"}]


def test_nccl_does_not_overrule_what_others_know_better() -> None:
    merged = merge([read("nccl"), read("lspci -vvv")])
    parents = {node.address: node.parent for node in merged.pci}
    assert parents[samples.GPUS[0]] == "0000:04:08.0"
    far = read_text(samples.TOPO.replace("\tPHB", "\tNODE"), origin="x")
    assert merge([read("nccl"), far]).nics[0].hops["gpu:2"] is Hop.NODE


@given(st.sampled_from(sorted(samples.ALL)), st.floats(0, 1))
def test_a_capture_cut_behind_a_line_shows_nothing_that_the_whole_does_not(name: str, share: float) -> None:
    lines = samples.ALL[name].splitlines(keepends=True)
    cut = "".join(lines[: round(share * len(lines))])
    try:
        machine = read_text(cut, origin="cut")
    except GputopoError:
        return  # that its words are right, the damaged captures below show
    merged = merge([read(name), machine])
    # That fewer GPUs are listed, and so counted otherwise, is the cut itself.
    reported = [c for c in merged.contradictions if c.fact not in ("gpus", "nics") and "p2p" not in c.fact]
    assert reported == []


def test_damaged_captures_are_read_or_refused_in_words() -> None:
    outcome = bench_fuzz.run(40, seed=0)
    assert outcome.wrong == {}
    assert min(outcome.read, outcome.refused) > 10
    assert outcome.slowest_s < 1.0  # the goal is 0.1 s; a busy machine gets more


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_capture_is_read(room: str) -> None:
    if not SHARED.is_dir():
        pytest.skip("the folder of public captures is not beside this checkout")
    paths = [path for path in sorted((SHARED / room).iterdir()) if path.name != "index.csv"]
    assert paths
    for path in paths:
        started = time.process_time()
        if path.name.startswith(REFUSED):
            with pytest.raises(GputopoError):
                load([str(path)])
            continue
        machine = load([str(path)])
        assert machine.gpus or machine.pci or machine.host.acs, path.name
        assert time.process_time() - started < 2.0  # the slowest takes 0.1 s
