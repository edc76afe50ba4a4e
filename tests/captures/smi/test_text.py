from collections.abc import Callable

import pytest

from gputopo.captures import read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

TOP = """
==============NVSMI LOG==============

Timestamp                                 : Sat Jun  3 11:59:25 2023
Driver Version                            : 525.105.17
CUDA Version                              : 12.0

Attached GPUs                             : 2
"""
CARD = """GPU 00000000:{bus}:00.0
    Product Name                          : NVIDIA GeForce RTX 3080
    Persistence Mode                      : Disabled
    PCI
        Device Id                         : 0x220610DE
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 8x
    Performance State                     : P2
    Clocks Throttle Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
    FB Memory Usage
        Total                             : 10240 MiB
        Used                              : 300 MiB
        Free                              : 9940 MiB
    Ecc Mode
        Current                           : N/A
        Pending                           : N/A
    Temperature
        GPU Current Temp                  : {heat} C
        GPU Slowdown Temp                 : 95 C
    Power Readings
        Power Draw                        : 93.68 W
        Power Limit                       : 300.00 W
        Default Power Limit               : 320.00 W
        Enforced Power Limit              : 290.00 W
    Clocks
        Graphics                          : 1695 MHz
        Memory                            : 9251 MHz
    Max Clocks
        Graphics                          : 2100 MHz
        Memory                            : 9501 MHz

"""
BOX = TOP + CARD.format(bus="0A", heat=49) + CARD.format(bus="0B", heat=51)


def parse(text: str) -> Machine:
    return read_text(text, origin="box.txt")


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert caught.value.what.startswith("box.txt")
    return caught.value


def without_indentation(text: str) -> str:
    return "".join(line.lstrip(" ") for line in text.splitlines(keepends=True))


def squeezed(text: str) -> str:
    return "\n".join(
        line[: len(line) - len(line.lstrip())] + " ".join(line.split()) for line in text.splitlines()
    ).replace(" : ", ": ")


PASTES: dict[str, Callable[[str], str]] = {
    "tabs": lambda text: text.replace("        ", "\t"),
    "without indentation": without_indentation,
    "squeezed": squeezed,
}


@pytest.mark.parametrize("paste", PASTES)
def test_a_paste_reads_the_same_whatever_was_done_to_it(paste: str) -> None:
    machine = parse(PASTES[paste](BOX))
    assert machine.gpus == parse(BOX).gpus
    assert machine.unread == ()


def test_outputs_after_one_another_are_one_machine() -> None:
    power = CARD.format(bus="0A", heat=49).split("    Temperature")[0]
    heat = "GPU 00000000:0A:00.0\n    Temperature\n        GPU Current Temp                  : 77 C\n"
    machine = parse(TOP + power + "\n$ nvidia-smi -q -d TEMPERATURE\n" + TOP + heat)
    (gpu,) = machine.gpus
    assert (gpu.memory_mib.total, gpu.temperature_c.gpu) == (10240, 77)
    assert machine.contradictions == ()
    assert machine.missing["gpus[*].index"].startswith("2 GPUs are attached and 1 ")


def test_each_output_of_a_loop_is_a_sample_in_either_order() -> None:
    outputs = [TOP + CARD.format(bus="0A", heat=heat) for heat in (49, 80)]
    for text in ("".join(outputs), "".join(outputs[::-1])):
        machine = parse(text)
        assert [sample.gpus[0]["temperature_c.gpu"] for sample in machine.samples] == [49, 80]
        assert machine.source == "nvidia-smi -q + nvidia-smi -q (2)"
        assert machine.contradictions == ()
        assert machine.unread == ()


def test_a_section_whose_heading_was_lost_is_not_read_as_another() -> None:
    machine = parse(BOX.replace("    Max Clocks\n", ""))
    clocks = machine.gpus[0].clocks_mhz
    assert (clocks.graphics.now, clocks.graphics.max) == (None, None)
    assert machine.missing["gpus[0].clocks_mhz.graphics.now"] == "reported twice, as 1695 and as 2100"
    assert len(machine.unread) == 4


@pytest.mark.parametrize(
    "cut", ["Memory                            : 95", "Used                              : 300 M"]
)
def test_a_value_that_was_cut_is_not_a_smaller_one(cut: str) -> None:
    machine = parse(BOX[: BOX.rindex(cut) + len(cut)])
    last = machine.gpus[1]
    assert last.clocks_mhz.memory.max is None
    assert (last.memory_mib.used is None) == ("Used" in cut)
    assert last.memory_mib.total == 10240
    assert machine.unread[-1].text == " ".join(cut.split())


def test_a_card_that_did_not_answer_is_lost_and_keeps_its_place() -> None:
    said = "Unable to determine the device handle for GPU0: 0000:09:00.0: Unknown Error\n"
    machine = parse(said + BOX)
    assert [gpu.pci_address for gpu in machine.gpus] == ["0000:09:00.0", "0000:0a:00.0", "0000:0b:00.0"]
    assert [gpu.lost for gpu in machine.gpus] == [True, False, False]


@pytest.mark.parametrize("paste", [str, without_indentation])
def test_the_product_of_a_license_is_not_that_of_the_card(paste: Callable[[str], str]) -> None:
    machine = parse(
        paste(
            "==============NVSMI LOG==============\nvGPU Driver Capability\n"
            "        Heterogenous Multi-vGPU : Supported\n"
            "GPU 00000000:02:00.0\n    Product Name : GRID A100D-40C\n    GPU Virtualization Mode\n"
            "        Virtualization Mode : VGPU\n    vGPU Software Licensed Product\n"
            "        Product Name : NVIDIA Virtual Compute Server\n        License Status : Unlicensed\n"
            "    Performance State : P0\n"
        )
    )
    assert [(gpu.name, gpu.virtualization, gpu.pstate) for gpu in machine.gpus] == [
        ("GRID A100D-40C", "vgpu", "P0")
    ]
    assert machine.unread == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TOP, "no GPU in this"),
        ("==============NVSMI LOG==============\n", "no GPU in this"),
    ],
)
def test_an_output_without_a_card_is_refused(text: str, says: str) -> None:
    assert says in refused(text).what


def test_the_serial_number_and_what_identifies_a_card_stay_out_of_the_list() -> None:
    uuid = "GPU-8f6a3c1e-1234-4b1f-9d1c-2f3a4b5c6d7e"
    text = BOX.replace("    PCI\n", f"    Serial Number : 1322621075384\n    Odd Id : {uuid}\n    PCI\n", 1)
    machine = parse(text)
    assert [one.text for one in machine.unread] == ["Odd Id : GPU-..."]


def test_mig_instances_are_counted_only_where_their_list_is_whole() -> None:
    head = (
        "==============NVSMI LOG==============\n\nAttached GPUs                 : 1\n"
        "GPU 00000000:05:00.0\n    MIG Mode\n        Current               : Enabled\n"
    )
    one = "    MIG Device\n        Index                 : 0\n        GPU Instance ID       : 2\n"
    cut = read_text(head + one + one.replace(": 0", ": 1"), origin="x")
    assert cut.gpus[0].mig.instances is None
    assert cut.missing["gpus[0].mig.instances"] == "the text ends in the middle of their list"
    whole = read_text(head + one + "    Accounting Mode           : Disabled\n", origin="x")
    assert whole.gpus[0].mig.instances == 1
