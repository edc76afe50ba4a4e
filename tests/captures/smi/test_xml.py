from pathlib import Path

import pytest

from gputopo.captures import read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import GpuProcess, Machine

HEAD = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'


def log(*gpus: str, top: str = "<driver_version>535.54.03</driver_version>") -> str:
    cards = "\n".join(f'<gpu id="00000000:{17 + n}:00.0">\n{gpu}\n</gpu>' for n, gpu in enumerate(gpus))
    top += f"\n<attached_gpus>{len(gpus)}</attached_gpus>"
    return f"{HEAD}<nvidia_smi_log>\n{top}\n{cards}\n</nvidia_smi_log>\n"


def parse(text: str) -> Machine:
    return read_text(text, origin="box.xml")


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert caught.value.what.startswith("box.xml")
    assert "\n" not in caught.value.what + caught.value.hint
    return caught.value


def test_a_driver_that_gave_its_version_has_answered() -> None:
    machine = parse(log("<product_name>NVIDIA A10G</product_name>"))
    assert machine.source == "nvidia-smi -q -x"
    assert (machine.driver.status, machine.driver.version) == ("ok", "535.54.03")
    assert machine.gpus[0].pci_address == "0000:17:00.0"
    assert parse(log("<fan_speed>30 %</fan_speed>", top="")).driver.status == "not_read"


def test_a_section_that_is_one_reason_gives_it_to_all_its_facts() -> None:
    machine = parse(
        log("<remapped_rows>N/A</remapped_rows><clocks_throttle_reasons>N/A</clocks_throttle_reasons>")
    )
    assert machine.missing["gpus[0].remapped_rows.pending"] == "N/A"
    assert machine.missing["gpus[0].throttle.reasons"] == "N/A"
    assert machine.unread == ()


def test_an_unknown_element_is_listed_once_with_its_line_and_the_rest_is_read() -> None:
    machine = parse(
        log(
            "<product_name>NVIDIA B300</product_name>\n"
            "<flux>88 GW</flux>\n"
            "<warp_core>\n<coil><ohm>3</ohm></coil>\n</warp_core>\n"
            "<fan_speed>30 %</fan_speed>"
        )
    )
    assert [(one.line, one.text) for one in machine.unread] == [(8, "<flux> 88 GW"), (9, "<warp_core>")]
    assert machine.gpus[0].fan_percent == 30
    assert machine.gpus[0].name == "NVIDIA B300"


def test_the_draw_is_the_average_and_where_there_is_none_the_one_of_this_instant() -> None:
    readings = "<average_power_draw>{}</average_power_draw><instant_power_draw>38.92 W</instant_power_draw>"
    for average, draw in (("40.00 W", 40.0), ("N/A", 38.92)):
        text = log(f"<gpu_power_readings>{readings.format(average)}</gpu_power_readings>")
        assert parse(text).gpus[0].power_w.draw == draw


def test_instances_of_a_split_card_are_counted_and_their_memory_is_not_the_cards() -> None:
    instance = (
        "<mig_device><index>0</index><fb_memory_usage><total>9984 MiB</total></fb_memory_usage></mig_device>"
    )
    machine = parse(
        log(
            "<mig_mode><current_mig>Enabled</current_mig></mig_mode>"
            f"<mig_devices>{instance * 3}</mig_devices>"
            "<fb_memory_usage><total>81559 MiB</total></fb_memory_usage>"
        )
    )
    assert machine.gpus[0].mig.mode is True
    assert machine.gpus[0].mig.instances == 3
    assert machine.gpus[0].memory_mib.total == 81559
    assert machine.unread == ()


def test_processes_are_read_without_what_identifies_the_person() -> None:
    machine = parse(
        log(
            "<processes>"
            "<process_info><pid>675</pid><type>G</type><process_name>/usr/lib/xorg/Xorg</process_name>"
            "<used_memory>22 MiB</used_memory></process_info>"
            "<process_info><pid>5762</pid><type>C</type>"
            "<process_name>/home/me/env/bin/python a.py</process_name>"
            "<used_memory>N/A</used_memory></process_info>"
            "</processes>",
            "<processes>\n</processes>",
            "<processes>N/A</processes>",
        )
    )
    assert machine.gpus[0].processes == (
        GpuProcess(pid=675, kind="graphics", name="Xorg", memory_mib=22),
        GpuProcess(pid=5762, kind="compute", name="python"),
    )
    assert machine.gpus[1].processes == ()
    assert machine.gpus[2].processes is None
    assert machine.missing["gpus[2].processes"] == "N/A"


def test_what_a_terminal_left_around_the_log_is_passed_over() -> None:
    text = log("<fan_speed>30 %</fan_speed>\n<flux>1</flux>")
    around = parse(f"me@box:~$ nvidia-smi -q -x\n\n{text}me@box:~$ \n")
    assert around.gpus == parse(text).gpus
    assert [one.line for one in around.unread] == [one.line + 2 for one in parse(text).unread]


def test_no_gpu_is_a_statement_where_the_log_reports_it() -> None:
    assert parse(log()).gpus == ()
    assert parse(log()).driver.status == "ok"
    assert "there is no <gpu>" in refused(log().replace("<attached_gpus>0", "<attached_gpus>4")).what


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa"> <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE nvidia_smi_log [<!ENTITY % x SYSTEM "http://127.0.0.1:9/x.dtd"> %x;]>',
    ],
)
def test_bombs_and_external_entities_are_refused(doctype: str) -> None:
    text = f"{doctype}<nvidia_smi_log><gpu id='0000:01:00.0'></gpu></nvidia_smi_log>"
    assert "declares XML entities" in refused(text).what


def test_the_dtd_that_a_log_names_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvsmi_device_v12.dtd").write_text('<!ENTITY name "from the DTD">')
    monkeypatch.chdir(tmp_path)
    assert parse(log("<product_name>NVIDIA A2</product_name>")).gpus[0].name == "NVIDIA A2"
    undeclared = log("<product_name>&name;</product_name>")
    with pytest.raises(InputError):
        parse(undeclared)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (log("<fan_speed>30 %</fan_speed>")[:-20], "is not complete XML: it has no </nvidia_smi_log>"),
        (log("<fan_speed>30 %</fan>"), "is not complete XML: mismatched tag"),
        (log(f"<capabilities>{'<a>' * 50}{'</a>' * 50}</capabilities>"), "nested too deep"),
        ("<other><nvidia_smi_log></nvidia_smi_log></other>", "there is no <gpu>"),
    ],
)
def test_xml_that_cannot_be_read_is_refused_in_words(text: str, says: str) -> None:
    assert says in refused(text).what
