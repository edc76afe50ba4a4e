import pytest

from gputopo.captures import read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

HEAD = "index, name, pci.bus_id, memory.total [MiB], clocks.max.memory [MHz], pcie.link.gen.current, pstate\n"
ROWS = (
    "0, NVIDIA GeForce RTX 3080, 00000000:0A:00.0, 10240 MiB, 9501 MHz, 1, P8\n"
    "1, NVIDIA GeForce RTX 3080, 00000000:0B:00.0, 10240 MiB, 9501 MHz, 4, P2\n"
)


def parse(text: str) -> Machine:
    return read_text(text, origin="box.csv")


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert caught.value.what.startswith("box.csv")
    return caught.value


def test_each_line_is_a_card_and_each_column_a_fact() -> None:
    machine = parse(HEAD + ROWS)
    assert machine.source == "nvidia-smi --query-gpu"
    assert [gpu.pci_address for gpu in machine.gpus] == ["0000:0a:00.0", "0000:0b:00.0"]
    assert [gpu.pcie.gen_now for gpu in machine.gpus] == [1, 4]
    assert [gpu.clocks_mhz.memory.max for gpu in machine.gpus] == [9501, 9501]
    assert machine.unread == ()
    for fact in ("fan_percent", "memory_mib.used", "ecc"):  # a whole section is one entry
        assert machine.missing[f"gpus[*].{fact}"] == "not in the capture"
    assert machine.driver.status == "not_read"


def test_numbers_without_units_are_in_the_units_of_their_columns() -> None:
    bare = ROWS.replace(" MiB", "").replace(" MHz", "")
    assert parse(HEAD + bare) == parse(HEAD + ROWS)
    assert parse(HEAD.replace(" [MiB]", "").replace(" [MHz]", "") + bare).gpus == parse(HEAD + ROWS).gpus


def test_a_number_with_another_unit_is_not_read() -> None:
    machine = parse(HEAD + ROWS.replace("10240 MiB", "10 GiB", 1))
    assert [gpu.memory_mib.total for gpu in machine.gpus] == [None, 10240]
    assert machine.missing["gpus[0].memory_mib.total"] == "not understood: 10 GiB"
    assert [one.text for one in machine.unread] == ["memory.total: 10 GiB"]


def test_several_queries_are_of_one_machine() -> None:
    heat = "index, temperature.gpu, fan.speed [%]\n0, 41, 30 %\n1, 43, [N/A]\n"
    command = "$ nvidia-smi --query-gpu=index,temperature.gpu,fan.speed --format=csv\n"
    machine = parse(HEAD + ROWS + command + heat)
    assert [(gpu.pstate, gpu.temperature_c.gpu) for gpu in machine.gpus] == [("P8", 41), ("P2", 43)]
    assert (machine.unread, machine.contradictions) == ((), ())


def test_queries_for_programs_and_retired_pages_are_passed_over() -> None:
    programs = "gpu_name, gpu_bus_id, pid, used_gpu_memory [MiB]\nA, 00000000:0B:00.0, 4711, 300 MiB\n"
    pages = "gpu_uuid, retired_pages.address, retired_pages.cause\nGPU-1, [N/A], Single Bit ECC\n"
    machine = parse(programs + HEAD + ROWS + pages)
    assert (machine.gpus, machine.unread) == (parse(HEAD + ROWS).gpus, ())


@pytest.mark.parametrize(("sram", "total"), [("3", 355), ("[N/A]", None)])
def test_ecc_errors_are_added_up_only_from_sram_and_dram(sram: str, total: int | None) -> None:
    head = "index, name, ecc.errors.corrected.volatile.sram, ecc.errors.corrected.volatile.dram\n"
    machine = parse(f"{head}0, Quadro RTX 6000, {sram}, 352\n")
    assert machine.gpus[0].ecc.corrected_volatile == total
    assert machine.missing.get("gpus[0].ecc.corrected_volatile") == (None if total else "N/A")
    assert (machine.gpus[0].ecc.counts or {})["volatile.dram_correctable"] == 352


def test_a_list_of_columns_is_no_list_of_cards() -> None:
    columns = "".join(f"{name}\n" for name in ("index", "pci.bus_id", "pcie.link.gen.max", "power.limit"))
    assert parse(columns + "####\n" + HEAD + ROWS).gpus == parse(HEAD + ROWS).gpus
    assert [gpu.temperature_c.gpu for gpu in parse("temperature.gpu\n41\n43\nThat is all\n").gpus] == [41, 43]


def test_the_index_is_the_columns_and_not_the_lines() -> None:
    assert [gpu.index for gpu in parse("index, name\n3, A\n1, B\n").gpus] == [1, 3]
    assert [gpu.index for gpu in parse("name, pstate\nA, P0\nB, P8\n").gpus] == [0, 1]


def test_two_cards_of_one_index_are_refused() -> None:
    assert "another GPU has the index 0" in refused(HEAD + ROWS.replace("1, NV", "0, NV")).what


def test_reasons_in_brackets_are_reasons_and_a_lost_card_is_lost() -> None:
    machine = parse(
        "index, name, temperature.gpu, fan.speed [%]\n0, A, [GPU is lost], [N/A]\n1, B, 41, 30 %\n"
    )
    assert [gpu.lost for gpu in machine.gpus] == [True, False]
    assert machine.missing["gpus[0].temperature_c.gpu"] == "GPU is lost"
    assert machine.missing["gpus[0].fan_percent"] == "N/A"
    assert machine.gpus[1].fan_percent == 30


def test_a_card_that_answers_nothing_but_errors_is_lost_and_one_with_a_broken_fan_is_not() -> None:
    machine = parse(
        "index, name, pci.bus_id, temperature.gpu, power.draw [W], fan.speed [%]\n"
        "0, A, 00000000:0A:00.0, [Unknown Error], [Unknown Error], ERR!\n"
        "1, [Unknown Error], 00000000:0B:00.0, [Unknown Error], ERR!, [N/A]\n"
        "2, A, 00000000:0C:00.0, 41, [Unknown Error], ERR!\n"
        "3, A, 00000000:0D:00.0, [N/A], [N/A], [N/A]\n"
    )
    assert [gpu.lost for gpu in machine.gpus] == [True, True, False, False]
    assert machine.missing["gpus[0]"] == "an error instead of every reading"


@pytest.mark.parametrize("era", ["throttle", "event"])
def test_of_a_part_of_the_reasons_those_in_force_are_kept(era: str) -> None:
    machine = parse(
        f"index, clocks_{era}_reasons.hw_thermal_slowdown, clocks_{era}_reasons.sw_power_cap\n"
        "0, Active, Not Active\n1, Not Active, Not Active\n2, Active, [N/A]\n3, [N/A], [N/A]\n"
    )
    thermal = ("hw_thermal_slowdown",)
    assert [gpu.throttle.reasons for gpu in machine.gpus] == [thermal, None, thermal, None]
    for index in range(3):
        assert "only a part" in machine.missing[f"gpus[{index}].throttle.reasons"]
    assert machine.missing["gpus[3].throttle.reasons"] == "N/A"


def test_a_bare_number_at_the_very_end_may_be_cut_and_is_not_read() -> None:
    machine = parse("index, fan.speed [%], temperature.gpu\n0, 30 %, 41\n1, 30 %, 4")
    assert [gpu.temperature_c.gpu for gpu in machine.gpus] == [41, None]
    assert [one.line for one in machine.unread] == [3]
    assert [gpu.fan_percent for gpu in parse("index, fan.speed [%]\n0, 30 %").gpus] == [30]


def test_the_command_names_the_columns_that_the_output_leaves_out() -> None:
    options = "--format=csv,noheader --query-gpu=index,name,temperature.gpu -i 0,1"
    text = f"me@box:~$ nvidia-smi {options}\n0, NVIDIA H200, 41\n1, NVIDIA H200, 77\n"
    machine = read_text(text, origin="x")
    assert [(gpu.name, gpu.temperature_c.gpu) for gpu in machine.gpus] == [
        ("NVIDIA H200", 41),
        ("NVIDIA H200", 77),
    ]
    assert machine.unread == ()


def test_the_names_of_columns_alone_are_refused() -> None:
    assert "no GPU below it" in refused(HEAD).what


@pytest.mark.parametrize(
    "text",
    [
        "name, size\nbox, 3\n",
        "<!ELEMENT nvidia_smi_log        (timestamp, driver_version,\n",
        '# HELP smi_info labeled by uuid, name, serial\nsmi_info{uuid="x",name="A"} 1\n',
        "name\n",
    ],
)
def test_other_tables_are_not_taken_for_a_query(text: str) -> None:
    with pytest.raises(InputError, match="unknown format"):
        parse(text)
