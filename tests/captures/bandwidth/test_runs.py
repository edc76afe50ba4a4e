"""Several runs of a program in one text, or in several files: every number is of its run."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.copies import checked
from gputopo.values.bandwidth import Bandwidth, Samples
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu, Machine
from tests import there
from tests.captures.samples import in_turn, loaded
from tests.captures.samples import whole_of as read
from tests.kit.dialects import bandwidthtest, measured, nvbandwidth, p2p, several_runs

seeds = st.integers(0, 2**32)
Write = Callable[[Machine, Random], tuple[Machine, str]]


def _of_p2p(machine: Machine, random: Random) -> tuple[Machine, str]:
    era = p2p.ERAS["CUDA 12"]
    written = p2p.measure(machine, era, measured.numbers(random))
    return written, p2p.text(written, era)


def _of_nvbandwidth(machine: Machine, random: Random) -> tuple[Machine, str]:
    cases = [case for case in nvbandwidth.CASES if "_ce" in case.name]
    written = nvbandwidth.measure(machine, cases, measured.numbers(random))
    return written, nvbandwidth.text(written, (0, 8), cases)


def _of_bandwidth_test(machine: Machine, random: Random) -> tuple[Machine, str]:
    one = Machine(source="x", gpus=(Gpu(index=0, name="NVIDIA A100-SXM4-80GB"),))
    era = bandwidthtest.ERAS["CUDA 12"]
    written = bandwidthtest.measure(one, era, measured.numbers(random, 0.1, 99_999), "range")
    return written, bandwidthtest.text(written, era, one.gpus[0], "range")


PROGRAMS: dict[str, Write] = {
    "p2p": _of_p2p,
    "nvbandwidth": _of_nvbandwidth,
    "bandwidthTest": _of_bandwidth_test,
}


@pytest.mark.parametrize(("form", "program"), in_turn(several_runs.FORMS, PROGRAMS))
def test_runs_in_one_text_have_the_names_in_their_headings_or_numbers(form: str, program: str) -> None:
    prefix = "run " if form == "nothing" else "node"

    @settings(max_examples=1)
    @given(seeds)
    def run(seed: int) -> None:
        random = Random(seed)
        machine = measured.machine(random)
        written = [PROGRAMS[program](machine, random) for _ in range(random.randint(2, 3))]
        found, bandwidth = read(several_runs.FORMS[form]([output for _, output in written]))
        expected = [
            s for at, (one, _) in enumerate(written, 1) for s in several_runs.of_run(one, f"{prefix}{at}")
        ]
        if {s.run for s in bandwidth.samples} == {None}:  # all equal, by chance
            numbers = {s.value for s in expected}
            assert len(numbers) <= len(expected) / len(written)
            return
        assert sorted(map(repr, bandwidth.samples)) == sorted(map(repr, expected))
        assert [gpu.name for gpu in found.gpus] == [gpu.name for gpu in written[0][0].gpus]
        assert any(f"{len(written)} runs ({prefix}1" in note for note in bandwidth.notes)

    run()


@pytest.mark.parametrize("headings", [("node1", "node1"), ("CUDA 12", "CUDA 13")])
def test_headings_that_do_not_distinguish_runs_are_no_names(headings: tuple[str, str]) -> None:
    machine = measured.machine(Random(1))
    text = "".join(
        f"=== {head} ===\n{_of_p2p(machine, Random(seed))[1]}\n" for seed, head in enumerate(headings)
    )
    _, bandwidth = read(text)
    assert {sample.run for sample in bandwidth.samples} == {"run 1", "run 2"}


def test_the_same_output_twice_is_no_other_run() -> None:
    random = Random(1)
    _, output = _of_p2p(measured.machine(random), random)
    _, bandwidth = read(output + output)
    assert {s.run for s in bandwidth.samples} == {None}
    _, other = _of_p2p(measured.machine(Random(1)), random)
    _, bandwidth = read(output + other + output)
    assert {s.run for s in bandwidth.samples} == {"run 1", "run 2"}


def test_runs_on_different_gpus_are_refused() -> None:
    texts = []
    for name in ("NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB"):
        gpus = tuple(Gpu(index=i, name=name, pci_address=f"0000:0{i}:00.0") for i in range(2))
        texts.append(_of_p2p(Machine(source="x", gpus=gpus), Random(name))[1])
    text = several_runs.FORMS["rules"](texts)
    with pytest.raises(InputError, match="different GPUs: node1, node2") as error:
        read_text(text, origin="log")
    assert "several machines" in error.value.hint


def test_runs_on_the_same_model_at_other_addresses_are_of_several_machines() -> None:
    texts = []
    for bus in (1, 4):
        gpus = tuple(Gpu(index=i, name="NVIDIA A10", pci_address=f"0000:0{bus + i}:00.0") for i in range(2))
        texts.append(_of_p2p(Machine(source="x", gpus=gpus), Random(bus))[1])
    machine, _ = read("".join(texts))
    assert [(gpu.name, gpu.pci_address) for gpu in machine.gpus] == [("NVIDIA A10", None)] * 2
    assert "several machines" in machine.missing["gpus[*].pci_address"]


@pytest.mark.parametrize("program", ["p2p", "bandwidthTest"])
def test_files_of_before_and_after_are_runs_of_the_same_gpus(program: str, tmp_path: Path) -> None:
    random = Random(program)
    machine = measured.machine(random)
    written = [PROGRAMS[program](machine, random) for _ in range(2)]
    found = loaded(tmp_path, *(text for _, text in written))
    bandwidth = there(found.bandwidth)
    samples = [s for at, (one, _) in enumerate(written) for s in several_runs.of_run(one, f"{at}.txt")]
    expected = checked(Bandwidth(source="x", samples=Samples(samples)), found).samples
    assert sorted(map(repr, bandwidth.samples)) == sorted(map(repr, expected))
    assert len(found.gpus) == len(written[0][0].gpus)
    assert sum("2 runs (0.txt, 1.txt)" in note for note in bandwidth.notes) == 1


@pytest.mark.parametrize("program", ["p2p", "nvbandwidth"])
def test_a_run_with_fewer_gpus_is_of_those_that_it_lists(program: str) -> None:
    gpus = tuple(Gpu(index=i, name="NVIDIA A10", pci_address=f"0000:0{i}:00.0") for i in range(3))
    lost = tuple(msgspec.structs.replace(gpu, index=i) for i, gpu in enumerate(gpus[1:]))
    both = [PROGRAMS[program](Machine(source="x", gpus=of), Random(1)) for of in (gpus, lost)]
    for order in (1, -1):
        machine, bandwidth = read("".join(text for _, text in both[::order]))
        assert [gpu.pci_address for gpu in machine.gpus] == [gpu.pci_address for gpu in gpus]
        assert len(bandwidth.samples) == sum(len(several_runs.of_run(one, "")) for one, _ in both)
        second = [s for s in bandwidth.samples if s.run == ("run 2" if order == 1 else "run 1")]
        assert {place for s in second for place in (s.source, s.destination)} <= {
            "host",
            "gpus",
            "gpu:1",
            "gpu:2",
        }


def test_runs_of_bandwidthtest_on_each_gpu_of_several_hosts_are_of_both() -> None:
    era = bandwidthtest.ERAS["CUDA 12"]
    gpus = tuple(Gpu(index=i, name="NVIDIA A100-SXM4-80GB") for i in range(3))
    written = [
        bandwidthtest.measure(
            Machine(source="x", gpus=gpus), era, measured.numbers(Random(seed), 0.1, 99_999)
        )
        for seed in range(2)
    ]
    for hidden in (False, True):
        outputs = [
            "".join(bandwidthtest.text(one, era, gpu, hidden=hidden) for gpu in gpus) for one in written
        ]
        machine, bandwidth = read(several_runs.FORMS["rules"](outputs))
        expected = [s for at, one in enumerate(written, 1) for s in several_runs.of_run(one, f"node{at}")]
        assert sorted(map(repr, bandwidth.samples)) == sorted(map(repr, expected))
        assert [gpu.index for gpu in machine.gpus] == [0, 1, 2]
