"""What bandwidth tools of each era print of measured machines is read back: every number, and no other."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Gpu, Machine
from tests import there
from tests.captures.samples import in_turn, whole_of
from tests.kit.dialects import bandwidthtest, measured, nvbandwidth, p2p

seeds = st.integers(0, 2**32)


def read(text: str) -> tuple[Machine, Bandwidth]:
    machine, bandwidth = whole_of(text)
    assert not any("which version" in note for note in bandwidth.notes)
    return machine, bandwidth


def check(written: Machine, text: str) -> None:
    machine, bandwidth = read(text)
    expected = there(written.bandwidth)
    assert machine.gpus == written.gpus
    assert machine.links == written.links
    assert machine.driver == written.driver
    versions = (bandwidth.driver_version, bandwidth.cuda_version)
    assert versions == (expected.driver_version, expected.cuda_version)
    assert sorted(map(repr, bandwidth.samples)) == sorted(map(repr, expected.samples))
    assert sorted(map(repr, bandwidth.not_measured)) == sorted(map(repr, expected.not_measured))


def in_cuda_order(machine: Machine) -> Machine:
    """The GPUs of a program that prints no addresses: numbered as CUDA does."""
    return Machine(
        source=machine.source,
        gpus=tuple(Gpu(index=g.index, name=g.name, pci_address=g.pci_address) for g in machine.gpus),
        links=machine.links,
    )


def each_seed(body: Callable[[Random], None]) -> None:
    @settings(max_examples=1)  # of each era and form
    @given(seeds)
    def run(seed: int) -> None:
        body(Random(seed))

    run()


@pytest.mark.parametrize("era", p2p.ERAS)
def test_p2p_of_any_machine_is_read_with_every_direction(era: str) -> None:
    def body(random: Random) -> None:
        written = p2p.measure(measured.machine(random), p2p.ERAS[era], measured.numbers(random))
        check(written, p2p.text(written, p2p.ERAS[era]))

    each_seed(body)


def some_cases(random: Random) -> list[nvbandwidth.Case]:
    """All tests, or some as with -t."""
    every = nvbandwidth.CASES
    if random.random() < 0.3:
        return every
    return [case for case in every if random.random() < 0.4] or [random.choice(every)]


@pytest.mark.parametrize("version", nvbandwidth.VERSIONS)
@pytest.mark.parametrize("form", ["text", "json"])
def test_nvbandwidth_of_any_machine_is_read(form: nvbandwidth.Form, version: nvbandwidth.Version) -> None:
    def body(random: Random) -> None:
        machine, cases = measured.machine(random), some_cases(random)
        if form == "text" and version >= (0, 10):
            machine = in_cuda_order(machine)
        written = nvbandwidth.measure(machine, cases, measured.numbers(random))
        write = nvbandwidth.json_text if form == "json" else nvbandwidth.text
        text = write(written, version, cases)
        assert "some-host" not in repr(read_text(text, origin="written"))
        check(nvbandwidth.printed(written, version, form, cases), text)

    each_seed(body)


@pytest.mark.parametrize(
    ("csv", "mode", "era"), in_turn([False, True, True], bandwidthtest.MODES, bandwidthtest.ERAS)
)
def test_bandwidthtest_of_each_gpu_is_read(era: str, mode: bandwidthtest.Mode, csv: bool) -> None:
    written_era = bandwidthtest.ERAS[era]

    def body(random: Random) -> None:
        machine = in_cuda_order(measured.machine(random))
        machine = Machine(
            source="random", gpus=tuple(Gpu(index=gpu.index, name=gpu.name) for gpu in machine.gpus)
        )
        pinned, hidden = random.random() < 0.5, random.random() < 0.5
        numbers = measured.numbers(random, 0.1, 99_999)
        written = bandwidthtest.measure(machine, written_era, numbers, mode, pinned=pinned)
        combined = pinned and random.random() < 0.3
        runs = [
            bandwidthtest.text(
                written, written_era, gpu, mode, csv=csv, write_combined=combined, hidden=hidden
            )
            for gpu in written.gpus
        ]
        random.shuffle(runs)
        check(written, "\n".join(runs))

    each_seed(body)
