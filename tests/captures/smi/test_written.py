"""What `nvidia-smi` of each driver era prints is read back: every fact that it prints, and no other."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.values.machine import Gpu
from tests.kit.dialects import random_gpus, smi, smi_rows

CAPTURES = Path(__file__).parents[4] / "shared" / "captures"
WRITERS = {"text": smi.text, "xml": smi.xml, "csv": smi.csv}
CASES = [(dialect, era) for dialect in WRITERS for era in smi_rows.ERAS]


def printed(gpu: Gpu, era: int, dialect: smi.Dialect) -> dict[str, Any]:
    """Return the facts of a GPU that a dialect prints, with the totals that the reader adds up."""
    found = {fact: smi.value(gpu, fact) for fact, _ in smi.facts(era, dialect)} | {"name": gpu.name}
    return totals(found) | found


def totals(found: Mapping[str, Any]) -> dict[str, Any]:
    """NVML's totals of drivers that print only what they are made of; a part with N/A counts nothing."""
    added: dict[str, Any] = {}
    for since in ("volatile", "aggregate"):
        for what in ("corrected", "uncorrected"):
            part = rf"ecc\.counts\[{since}\.[sd]ram_{what[:-2]}able(_parity|_secded)?\]"
            numbers = [number for fact, number in found.items() if re.fullmatch(part, fact)]
            known = [number for number in numbers if number is not None]
            if numbers:
                added[f"ecc.{what}_{since}"] = sum(known) if known else None
    return added


def differences(written: Gpu, read: Gpu, era: int, dialect: smi.Dialect) -> dict[str, tuple[Any, Any]]:
    """Return the facts that do not come back, and those that nothing printed."""
    expected = printed(written, era, dialect)
    found = {fact: (value, smi.value(read, fact)) for fact, value in expected.items()}
    wrong = {fact: pair for fact, pair in found.items() if pair[0] != pair[1]}
    known = {re.split(r"[\[]", fact)[0] for fact in expected} | {
        "index",
        "lost",
        "ecc.counts",
        "throttle.reasons",
    }
    for fact, value in leaves(msgspec.to_builtins(read)):
        covered = any(fact == one or fact.startswith(f"{one}.") for one in known)
        if not covered and value is not None and not fact.startswith(("violation_ns", "fabric.health")):
            wrong[fact] = (None, value)
    return wrong


def leaves(value: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, part in value.items():
        found += leaves(part, f"{path}{name}.") if isinstance(part, dict) else [(path + name, part)]
    return found


@pytest.mark.parametrize(("dialect", "era"), CASES)
def test_every_fact_that_a_driver_prints_is_read(dialect: smi.Dialect, era: int) -> None:
    @settings(max_examples=1)  # of each era and form
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        machine = random_gpus.machine(Random(seed), era, dialect)
        read = read_text(WRITERS[dialect](machine, era), origin="written")
        assert read.unread == ()
        assert read.contradictions == ()
        assert read.gaps == ()
        driver = machine.driver
        assert (read.driver.version, read.driver.cuda_version) == (driver.version, driver.cuda_version)
        assert [gpu.index for gpu in read.gpus] == [gpu.index for gpu in machine.gpus]
        for written, found in zip(machine.gpus, read.gpus, strict=True):
            assert differences(written, found, era, dialect) == {}

    check()


# Those that hold all sections, and the driver's version.
CAPTURED = [
    *(path for path in sorted(CAPTURES.glob("smi_text/*.txt")) if "retired-pages" not in path.name),
    *(path for path in sorted(CAPTURES.glob("smi_xml/*.xml")) if "1070" not in path.name),
    *sorted(CAPTURES.glob("other/query-gpu-csv_*.txt")),
]
MASKED = (
    *("uuid", "GPU UUID", "pci/pci_device_id", "pci/pci_sub_system_id"),
    *("inforom_version/img_version", "vbios_version"),
)  # as people publish them


@pytest.mark.parametrize("path", CAPTURED, ids=lambda path: path.name)
def test_the_writers_print_the_rows_of_public_captures(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    driver = re.search(r"river.version\W.*?(\d{3})\.\d+|, (\d{3})\.\d+", text, re.IGNORECASE | re.DOTALL)
    machine = read_text(text, origin=path.name)
    assert driver is not None
    era = int(driver[1] or driver[2])
    dialect: smi.Dialect = "xml" if path.suffix == ".xml" else "text" if "NVSMI LOG" in text else "csv"
    captured, written = rows_of(text, dialect), rows_of(WRITERS[dialect](machine, era), dialect)
    names = smi.names(era, dialect)
    assert machine.unread == ()
    facts = {row for row, fact in names.items() if fact != "power_w.draw"}
    facts -= {row for row in MASKED if written.get(row, [""])[0] in ("N/A", "[N/A]")}
    assert {row: value for row, value in written.items() if row in facts and captured.get(row) != value} == {}


def rows_of(text: str, dialect: smi.Dialect) -> dict[str, list[str]]:
    """Return what stands in each row of the GPUs, by the row's path, in the order of the text."""
    found: dict[str, list[str]] = {}
    if dialect == "csv":
        titles, *lines = [line.split(", ") for line in text.splitlines()]
        return {title: [line[place] for line in lines] for place, title in enumerate(titles)}
    if dialect == "xml":
        for gpu in ET.fromstring(text).findall("gpu"):
            for path, value in elements(gpu):
                found.setdefault(path, []).append(value)
        return found
    above: list[str] = []
    for line in re.split(r"^GPU 0.*$", text, maxsplit=1, flags=re.MULTILINE)[1].splitlines():
        name, _, value = line.partition(" : ")
        depth = (len(name) - len(name.lstrip())) // 4 - 1
        above = [*above[: max(0, depth)], name.strip()]
        if value:
            found.setdefault("/".join(above), []).append(value.strip())
    return found


def elements(of: ET.Element, path: str = "") -> Iterator[tuple[str, str]]:
    for element in of:
        if len(element):
            yield from elements(element, f"{path}{element.tag}/")
        else:
            yield f"{path}{element.tag}", (element.text or "").strip()
