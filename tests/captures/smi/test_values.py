from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures.smi import values
from gputopo.captures.smi.values import ReportedValue
from tests import there


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("MHz", "9501 MHz", 9501),
        ("MiB", "81559 MiB", 81559),
        ("MiB", "6143 MB", 6143),
        ("W", "618.35 W", 618.35),
        ("C", "-8 C", -8),
        ("W", "-8 W", None),
        ("%", "100 %", 100),
        ("us", "204642816 us", 204642816000),
        ("width", "16x", 16),
        ("width", "8", 8),
        ("step", "6", 6),
        ("count", "353", 353),
        ("switch", "Enabled", True),
        ("yes", "No", False),
        ("yes as 1", "Yes", 1),
        ("active", "Not Active", False),
        ("mode", "Exclusive_Process", "exclusive_process"),
        ("mode", "E. Process", None),
        ("lower", "Pass-Through", "pass-through"),
        ("lower", "Host VGPU", "host vgpu"),
        ("lower", "None", "none"),
        ("pstate", "P12", "P12"),
        ("pstate", "P32", None),
        ("address", "00000000:17:00.0", "0000:17:00.0"),
        ("address", "00000001:00:00.0", "0001:00:00.0"),
        ("address", "0000:0A:00.0", "0000:0a:00.0"),
        ("address", "00010000:01:00.0", "10000:01:00.0"),
        ("device", "0x220410DE", "2204"),
        ("device", "26B910DE", "26b9"),
        ("device", "26B91002", None),
        ("mask", "0x00000000000001FF", 0x1FF),
        ("version", "610.57.04 [Deprecated; will be removed. Use KMD Version instead]", "610.57.04"),
        ("process", "C+G", "compute+graphics"),
        ("process", "M+C", "mps"),
        ("program", "/usr/bin/python3 train.py --user me", "python3"),
        ("program", "C:\\Program Files\\NZXT CAM\\NZXT CAM.exe", "NZXT CAM.exe"),
        ("program", "[Insufficient Permissions]", None),
        ("uuid", "GPU-8f6a3c1e-0000-4b1f-9d1c-2f3a4b5c6d7e", "GPU-8f6a3c1e-0000-4b1f-9d1c-2f3a4b5c6d7e"),
    ],
)
def test_a_value_is_read_as_its_kind(kind: str, text: str, value: object) -> None:
    assert values.parse(kind, text).value == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("N/A", "N/A"),
        ("[N/A]", "N/A"),
        ("[Not Supported]", "Not Supported"),
        ("Unknown Error", "Unknown Error"),
        ("[Unknown Error]", "Unknown Error"),
        ("ERR!", "ERR!"),
        ("GPU is lost", "GPU is lost"),
        ("[GPU is lost]", "GPU is lost"),
        ("Requested functionality has been deprecated", "Requested functionality has been deprecated"),
        ("Not available in WDDM driver model", "Not available in WDDM driver model"),
        ("[Insufficient Permissions]", "Insufficient Permissions"),
        ("", "the source leaves it empty"),
    ],
)
def test_no_value_has_the_reason_of_the_source(text: str, reason: str) -> None:
    kinds = ("MHz", "W", "count", "switch", "pstate", "address", "words", "section")
    assert {kind: values.parse(kind, text) for kind in kinds} == dict.fromkeys(
        kinds, ReportedValue(None, reason)
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("MHz", "25"),
        ("MHz", "252 MH"),
        ("MHz", "2520 MiB"),
        ("MHz", "2.5 MHz"),
        ("W", "71,27 W"),
        ("C", "٤٢ C"),
        ("count", "-1"),
        ("count", "3 errors"),
        ("step", "16x"),
        ("switch", "Perhaps"),
        ("address", "00000000:01:00"),
        ("MiB", "9" * 400 + " MiB"),
    ],
)
def test_what_is_not_understood_is_strange_and_not_guessed(kind: str, text: str) -> None:
    value = values.parse(kind, text)
    assert value.value is None
    assert value.strange
    assert there(value.reason).startswith("not understood: ")


def test_in_csv_a_number_may_stand_without_its_unit_but_not_with_another() -> None:
    assert values.parse("MiB", "8192", bare=True).value == 8192
    assert values.parse("C", "41", bare=True).value == 41
    assert values.parse("MiB", "8192 MHz", bare=True).value is None


@pytest.mark.parametrize(("kind", "text"), [("step", "0"), ("width", "0x"), ("device", "000000DE")])
def test_a_zero_that_means_unknown_is_no_number(kind: str, text: str) -> None:
    value = values.parse(kind, text)
    assert value.value is None
    assert not value.strange
    assert value.reason == f"the driver reports {text}"


def test_a_masked_uuid_identifies_nothing() -> None:
    masked = "GPU-00000000-0000-0000-0000-000000000000"
    assert values.parse("uuid", masked) == ReportedValue(None, "masked in the capture")


@given(st.sampled_from(["MHz", "W", "count", "switch", "uuid", "device", "program", "lower"]), st.text())
def test_any_text_gives_a_value_or_a_reason(kind: str, text: str) -> None:
    value: Any = values.parse(kind, text)
    assert (value.value is None) == (value.reason is not None)
