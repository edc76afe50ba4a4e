"""Each public capture is walked a second time, by other means than the parser, and compared."""

import csv
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gputopo.captures import reading
from gputopo.captures.smi import csv_table as smi_csv
from gputopo.captures.smi import text as smi_text
from gputopo.captures.smi import xml as smi_xml
from gputopo.values.machine import Gpu
from tests.captures.smi_numbers import made_up
from tests.cost import cost_of

CAPTURES = Path(__file__).parents[4] / "shared" / "captures"
XML = sorted(CAPTURES.glob("smi_xml*/*.xml"))
TEXT = sorted(path for path in CAPTURES.glob("smi_text/*.txt"))
CSV = sorted(CAPTURES.glob("other/query-gpu-csv_*.txt"))

if not CAPTURES.is_dir():
    pytest.skip("the folder of public captures is not beside this checkout", allow_module_level=True)

MEMORIES = {"fb_memory_usage": "memory_mib", "bar1_memory_usage": "bar1_mib"}
CLOCKS = {
    "clocks": "now",
    "max_clocks": "max",
    "applications_clocks": "application",
    "max_customer_boost_clocks": "boost",
}
DOMAINS = {"graphics": "graphics", "sm": "sm", "mem": "memory", "memory": "memory", "video": "video"}
HEADINGS = {
    "Clocks": "now",
    "Max Clocks": "max",
    "Applications Clocks": "application",
    "Max Customer Boost Clocks": "boost",
}


def number(text: str | None) -> float | None:
    """The number that a value begins with."""
    match = re.match(r"-?\d+(\.\d+)?", (text or "").strip())
    return float(match[0]) if match else None


@pytest.mark.parametrize("path", [*XML, *TEXT, *CSV], ids=lambda path: path.name)
def test_a_machine_has_every_line_and_no_number_that_its_capture_lacks_and_reasons_for_the_rest(
    path: Path,
) -> None:
    text = path.read_text(encoding="utf-8")
    machine = reading.read_text(text, origin=path.name)
    assert machine.gpus
    assert made_up(machine, text) == []
    assert machine.unread == ()
    for gpu in machine.gpus:
        for name in absent(msgspec.to_builtins(gpu)):
            reported = (f"gpus[{gpu.index}].{name}", f"gpus[*].{name}", f"gpus[*].{name.partition('.')[0]}")
            assert any(fact in machine.missing for fact in reported), name


def absent(value: dict[str, object], path: str = "") -> Iterator[str]:
    for name, part in value.items():
        if part is None:
            yield path + name
        elif isinstance(part, dict):
            yield from absent(part, f"{path}{name}.")


@pytest.mark.parametrize("path", XML, ids=lambda path: path.name)
def test_every_number_of_the_xml_that_has_a_place_is_there(path: Path) -> None:
    root = ET.parse(path).getroot()
    machine = smi_xml.parse(path.read_text(encoding="utf-8"), origin=path.name)
    found = root.findall("gpu")
    assert len(machine.gpus) == len(found)
    for gpu, element in zip(machine.gpus, found, strict=True):
        assert gpu.name == element.findtext("product_name")
        assert gpu.pci_address == kernel(element.get("id"))
        assert gpu.pstate == element.findtext("performance_state")
        for fact in ("vbios_version", "gsp_firmware_version"):
            shown = element.findtext(fact)
            assert getattr(gpu, fact) == (None if shown in ("N/A", "GPU is lost") else shown), fact
        for tag, room in MEMORIES.items():
            for part in ("total", "used", "free"):
                assert getattr(getattr(gpu, room), part) == number(element.findtext(f"{tag}/{part}"))
        for tag, when in CLOCKS.items():
            for short, domain in DOMAINS.items():
                reported = number(element.findtext(f"{tag}/{short}_clock"))
                if short != "memory":
                    assert getattr(getattr(gpu.clocks_mhz, domain), when) == reported
        check_power_and_heat(gpu, element)
        check_counts(gpu, element)


def kernel(address: str | None) -> str:
    domain, rest = (address or "").lower().split(":", 1)
    return f"{domain[-4:]}:{rest}"


def check_power_and_heat(gpu: Gpu, element: ET.Element) -> None:
    new = element.find("gpu_power_readings")
    power = new if new is not None else element.find("power_readings")
    assert power is not None
    draw = [power.findtext(tag) for tag in ("average_power_draw", "power_draw", "instant_power_draw")]
    assert gpu.power_w.draw == next((number(text) for text in draw if number(text) is not None), None)
    pairs = {"limit": "requested_power_limit", "enforced_limit": "current_power_limit"}
    if new is None:
        pairs = {"limit": "power_limit", "enforced_limit": "enforced_power_limit"}
    pairs |= {"default_limit": "default_power_limit", "min": "min_power_limit", "max": "max_power_limit"}
    for fact, tag in pairs.items():
        assert getattr(gpu.power_w, fact) == number(power.findtext(tag))
    heat = {
        "gpu": "gpu_temp",
        "memory": "memory_temp",
        "slowdown": "gpu_temp_slow_threshold",
        "shutdown": "gpu_temp_max_threshold",
        "max_operating": "gpu_temp_max_gpu_threshold",
        "target": "gpu_target_temperature",
        "margin": "gpu_temp_tlimit",
        "margin_slowdown": "gpu_temp_slow_tlimit_threshold",
        "margin_shutdown": "gpu_temp_max_tlimit_threshold",
        "margin_max_operating": "gpu_temp_max_gpu_tlimit_threshold",
    }
    for fact, tag in heat.items():
        assert getattr(gpu.temperature_c, fact) == number(element.findtext(f"temperature/{tag}")), fact


def check_counts(gpu: Gpu, element: ET.Element) -> None:
    link = {
        "gen_now": "pcie_gen/current_link_gen",
        "gen_max": "pcie_gen/max_link_gen",
        "gen_max_device": "pcie_gen/max_device_link_gen",
        "width_now": "link_widths/current_link_width",
        "width_max": "link_widths/max_link_width",
    }
    for fact, tag in link.items():
        assert getattr(gpu.pcie, fact) == number(element.findtext(f"pci/pci_gpu_link_info/{tag}"))
    assert gpu.pcie.replay_counter == number(element.findtext("pci/replay_counter"))
    assert gpu.fan_percent == number(element.findtext("fan_speed"))
    assert gpu.utilization_percent.gpu == number(element.findtext("utilization/gpu_util"))
    assert gpu.utilization_percent.memory == number(element.findtext("utilization/memory_util"))
    assert gpu.remapped_rows.correctable == number(element.findtext("remapped_rows/remapped_row_corr"))
    assert gpu.remapped_rows.uncorrectable == number(element.findtext("remapped_rows/remapped_row_unc"))
    pages = element.findtext("retired_pages/double_bit_retirement/retired_count")
    assert gpu.retired_pages.double_bit == number(pages)
    counted = {
        f"{since}.{count.tag}": number(count.text)
        for since in ("volatile", "aggregate")
        for count in element.findall(f"ecc_errors/{since}/*")
        if number(count.text) is not None
    }
    reported = gpu.ecc.counts or {}
    assert {name: reported.get(name) for name in counted} == counted
    prefix = "clocks_event_reasons_counters"
    power_cap = number(element.findtext(f"{prefix}/{prefix}_sw_power_cap"))
    if power_cap is not None:
        assert (gpu.violation_ns or {})["sw_power_cap"] == power_cap * 1000
    pids = [number(pid.text) for pid in element.findall("processes/process_info/pid")]
    assert [process.pid for process in gpu.processes or ()] == pids
    reasons = [
        reason.tag.partition("_reason_")[2].replace("display_clocks", "display_clock")
        for section in ("clocks_event_reasons", "clocks_throttle_reasons")
        for reason in element.findall(f"{section}/*")
        if reason.text == "Active"
    ]
    if element.find("clocks_event_reasons") is not None:
        assert sorted(gpu.throttle.reasons or ()) == sorted(reasons)


@pytest.mark.parametrize("path", TEXT, ids=lambda path: path.name)
def test_every_number_of_the_text_that_has_a_place_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    machine = smi_text.parse(text, origin=path.name)
    blocks = re.split(r"^GPU (?=[0-9A-F]{8}:)", text, flags=re.MULTILINE)[1:]
    assert len(machine.gpus) == len(blocks)
    for gpu, block in zip(machine.gpus, blocks, strict=True):
        sections = dict(re.findall(r"^    (\S[^:\n]*?) *\n((?: {8}.*\n)+)", block + "\n", flags=re.MULTILINE))
        for heading, when in HEADINGS.items():
            for name, value in lines_of(sections.get(heading, "")):
                domain = getattr(gpu.clocks_mhz, DOMAINS[name.lower()])
                assert getattr(domain, when) == number(value), (heading, name)
        for heading, room in (("FB Memory Usage", gpu.memory_mib), ("BAR1 Memory Usage", gpu.bar1_mib)):
            for name, value in lines_of(sections.get(heading, "")):
                if name != "Reserved":
                    assert getattr(room, name.lower()) == number(value)
        heat = dict(lines_of(sections.get("Temperature", "")))
        assert gpu.temperature_c.gpu == number(heat.get("GPU Current Temp"))
        assert gpu.temperature_c.slowdown == number(heat.get("GPU Slowdown Temp"))
        assert gpu.temperature_c.margin_slowdown == number(heat.get("GPU Slowdown T.Limit Temp"))
        assert gpu.temperature_c.memory == number(heat.get("Memory Current Temp"))
        power = dict(lines_of(sections.get("GPU Power Readings", "")))
        for fact in ("default", "min", "max"):
            field = "default_limit" if fact == "default" else fact
            assert getattr(gpu.power_w, field) == number(power.get(f"{fact.title()} Power Limit"))
        assert gpu.power_w.enforced_limit == number(power.get("Current Power Limit"))
        pids = [int(pid) for pid in re.findall(r"Process ID +: (\d+)", block)]
        assert [process.pid for process in gpu.processes or ()] == pids
        replays = re.search(r"Replays Since Reset +: (\d+)", block)
        assert gpu.pcie.replay_counter == (int(replays[1]) if replays else None)


def lines_of(section: str) -> list[tuple[str, str]]:
    return re.findall(r"^ {8}(\S.*?) +: (.*?) *$", section, flags=re.MULTILINE)


@pytest.mark.parametrize("path", CSV, ids=lambda path: path.name)
def test_every_number_of_the_query_that_has_a_place_is_there(path: Path) -> None:
    with path.open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file, skipinitialspace=True)
    (gpu,) = smi_csv.parse(path.read_text(encoding="utf-8"), origin=path.name).gpus
    for domain, when in (("graphics", "now"), ("sm", "now"), ("memory", "now"), ("video", "now")):
        reported = getattr(getattr(gpu.clocks_mhz, domain), when)
        assert reported == number(row[f"clocks.current.{domain} [MHz]"])
    assert gpu.clocks_mhz.memory.max == number(row["clocks.max.memory [MHz]"])
    assert gpu.memory_mib.used == number(row["memory.used [MiB]"])
    assert gpu.power_w.draw == number(row["power.draw [W]"])
    assert gpu.power_w.enforced_limit == number(row["enforced.power.limit [W]"])
    assert gpu.temperature_c.margin == number(row["temperature.gpu.tlimit"])
    assert gpu.utilization_percent.gpu == number(row["utilization.gpu [%]"])
    assert gpu.throttle.mask == int(row["clocks_event_reasons.active"], 16)
    assert (gpu.ecc.counts or {})["volatile.dram_correctable"] == number(
        row["ecc.errors.corrected.volatile.dram"]
    )
    assert gpu.remapped_rows.failure is (row["remapped_rows.failure"] == "Yes")


def test_the_largest_capture_is_read_in_a_fraction_of_a_second() -> None:
    path = max([*XML, *TEXT], key=lambda path: path.stat().st_size)
    text = path.read_text(encoding="utf-8")
    assert cost_of(lambda: reading.read_text(text, origin=path.name), rounds=3) < 25
