"""`nvidia-smi nvlink -s`: every link with its speed, inactive ones, NVML's refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.findings import find
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from tests import there
from tests.captures import samples

REFUSED = "Unable to retrieve NVLink information as all links are inactive"


def read(text: str = samples.NVLINK) -> Machine:
    return read_text(text, origin="x")


def test_a_refusal_of_nvml_is_the_reason() -> None:
    machine = read(samples.NVLINK.replace("GPU 2: GeForce GTX 1070", "GPU 2: GeForce GTX 1080"))
    assert machine.gpus[2].nvlinks is None
    assert machine.missing["gpus[2].nvlinks"].startswith("Unable to retrieve NVLink information")


def test_a_card_all_of_whose_links_are_down_has_as_many_as_its_peers() -> None:
    machine = read()
    assert [(link.link, link.active) for link in there(machine.gpus[2].nvlinks)] == [(0, False), (1, False)]
    assert "gpus[2].nvlinks" not in machine.missing
    up = "".join(f"\t Link {link}: 25 GB/s\n" for link in range(12))
    cards = "".join(f"GPU {index}: NVIDIA A100-SXM4-80GB (UUID: GPU-{index}a)\n{up}" for index in range(7))
    server = read(f"{cards}GPU 7: NVIDIA A100-SXM4-80GB (UUID: GPU-7a)\n\t {REFUSED}\n")
    (found,) = [one for one in find(server) if one.id == "nvlink.down"]
    assert (found.subject.text, found.severity) == ("gpu:7", "error")
    assert "0 of 12 NVLinks up" in found.says


def test_errors_of_nvlink_5_that_were_not_corrected_are_found_and_the_rest_is_known() -> None:
    text = (
        "GPU 0: NVIDIA GB200 (UUID: GPU-0a)\n\t Link 0: Tx packets: 9\n\t Link 0: Effective BER: 15e-255\n"
        "\t Link 0: FEC Errors - 0: 62112\n\t Link 0: Effective Errors: {}\n\t Link 0: Symbol Errors: 5\n"
    )
    assert [find(read(text.format(count))) != () for count in (0, 1)] == [False, True]
    (found,) = find(read(text.format(12)))
    assert (found.id, read(text.format(12)).unread) == ("nvlink.errors", ())
    assert "link 0: 12 effective" in found.says


def test_a_text_cut_behind_a_gpu_does_not_state_that_it_has_no_links() -> None:
    machine = read(samples.NVLINK[: samples.NVLINK.index("NVML")])
    assert machine.gpus[2].nvlinks is None
    assert machine.missing["gpus[2].nvlinks"] == "no line about its links"


@pytest.mark.parametrize(
    "text",
    [
        "GPU 0: NVIDIA H200 (UUID: GPU-0a)\nGPU 1: NVIDIA H200 (UUID: GPU-1a)\n",
        "> GPU 0,1: NVIDIA H200\n> GPU 0,1 Compute Capability: 9.0\n> CUDA Driver Version: 570.124.06\n",
    ],
)
def test_a_list_of_gpus_has_their_names(text: str) -> None:
    machine = read_text(text, origin="x")
    assert [(gpu.index, gpu.name) for gpu in machine.gpus] == [(0, "NVIDIA H200"), (1, "NVIDIA H200")]
    assert machine.source == "list of GPUs"
    assert machine.driver.version == ("570.124.06" if "570" in text else None)


def test_the_instances_below_a_gpu_of_a_list_are_counted() -> None:
    instance = "  MIG 3g.20gb     Device  {0}: (UUID: MIG-{0})\n"
    (gpu,) = read(f"GPU 0: NVIDIA A100 (UUID: GPU-0a)\n{instance.format(0)}{instance.format(1)}").gpus
    assert (gpu.mig.mode, gpu.mig.instances) == (True, 2)


@pytest.mark.parametrize("cut", ["\t Link 1: 53.125 GB/s\n...\n", "\t Link 3: 53.125 GB/s\n"])
def test_links_that_a_text_leaves_out_are_not_down(cut: str) -> None:
    whole = "".join(f"\t Link {link}: 53.125 GB/s\n" for link in range(18))
    links = (f"\t Link 0: 53.125 GB/s\n{cut}",) * 2 + (whole,)
    machine = read("".join(f"GPU {n}: NVIDIA GB200 (UUID: GPU-{n}a)\n{one}" for n, one in enumerate(links)))
    assert [len(gpu.nvlinks or ()) for gpu in machine.gpus] == [0, 0, 18]
    assert "nvlink.down" not in {one.id for one in find(machine)}
    assert len(machine.gaps) == 2


def test_other_ends_are_read_beside_the_speeds() -> None:
    ends = "GPU 0: A (UUID: GPU-1)\n Link 0: Remote Device 00000000:06:00.0: Link 3\n Link 0: 25 GB/s\n"
    (gpu,) = read(ends).gpus
    assert gpu.nvlinks is not None
    assert (gpu.nvlinks[0].remote_pci_address, gpu.nvlinks[0].gb_per_s) == ("0000:06:00.0", 25.0)


def test_one_link_with_two_speeds_is_refused() -> None:
    with pytest.raises(InputError, match="link 0 twice"):
        read(samples.NVLINK.replace("Link 1: <inactive>", "Link 0: 20 GB/s", 1))
    assert read(samples.NVLINK * 2).gpus == read().gpus


links = st.lists(
    st.one_of(st.none(), st.integers(1, 100_000).map(lambda number: number / 1000)), min_size=1, max_size=18
)


@given(st.lists(links, min_size=1, max_size=8))
def test_what_was_printed_is_what_is_read(cards: list[list[float | None]]) -> None:
    text = ""
    for index, speeds in enumerate(cards):
        text += f"GPU {index}: Card (UUID: GPU-{index}abc)\n"
        for link, speed in enumerate(speeds):
            text += f"\t Link {link}: {'<inactive>' if speed is None else f'{speed:.3f} GB/s'}\n"
    machine = read(text)
    assert [gpu.uuid for gpu in machine.gpus] == [f"GPU-{index}abc" for index in range(len(cards))]
    reported = [[link.gb_per_s for link in gpu.nvlinks or ()] for gpu in machine.gpus]
    assert reported == cards
    assert [[link.active for link in gpu.nvlinks or ()] for gpu in machine.gpus] == [
        [speed is not None for speed in speeds] for speeds in cards
    ]
