import pytest

from gputopo.values.machine import Machine, NvLink
from tests.kit.machines import read_here
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS, NvLinkSpec, changed

COUNTER = "nvmlDeviceGetNvLinkErrorCounter"
NEW_COUNTS = {206: 1, 207: 2, 208: 3, 209: 4, 210: 5, 211: 6, 212: 7, 214: 8, 219: 9}


def read(fake: FakeNvml) -> Machine:
    with installed(fake):
        return read_here()


def nvlink(spec: NvLinkSpec, *refused: str) -> tuple[NvLink, dict[str, str]]:
    """Return the first link of a GPU with such links, and the reasons of what it did not report."""
    fake = FakeNvml(changed(SCENARIOS["four"], gpus={0: {"nvlinks": (spec, spec)}}))
    for call in refused:
        fake.refuse(call, gpu=0)
    machine = read(fake)
    links = machine.gpus[0].nvlinks
    assert links is not None
    prefix = "gpus[0].nvlinks[0]."
    return links[0], {
        path.removeprefix(prefix): reason
        for path, reason in machine.missing.items()
        if path.startswith(prefix)
    }


@pytest.mark.parametrize(("version", "speed"), [(1, 19_375), (2, 25_781), (5, 25_781), (7, 50_000)])
def test_the_speed_of_a_link_is_reported_by_the_field_of_its_time(version: int, speed: int) -> None:
    link, missing = nvlink(NvLinkSpec(1, version, mb_per_s=speed))
    assert link.gb_per_s == speed / 1000
    assert "gb_per_s" not in missing


def test_a_speed_that_is_refused_or_zero_is_missing() -> None:
    link, missing = nvlink(NvLinkSpec(1, 6), "nvmlDeviceGetFieldValues[164,0]")
    assert (link.gb_per_s, missing["gb_per_s"]) == (None, "NOT_SUPPORTED")
    link, missing = nvlink(NvLinkSpec(1, 6, mb_per_s=0))
    assert (link.gb_per_s, missing["gb_per_s"]) == (None, "UNKNOWN")


def test_a_link_of_a_card_between_shows_its_old_counters_and_not_their_sum_again() -> None:
    link, missing = nvlink(NvLinkSpec(1, 5, {0: 1, 1: 2, 2: 3, 3: 4}, {161: 1, 162: 2, 163: 7}))
    assert link.errors == {"replay": 1, "recovery": 2, "crc_flit": 3, "crc_data": 4}
    assert missing == {}


def test_where_the_old_counters_are_refused_field_values_stand_in() -> None:
    link, missing = nvlink(NvLinkSpec(1, 6, {}, {161: 1, 162: 2, 163: 7}), COUNTER)
    assert link.errors == {"replay": 1, "recovery": 2, "crc": 7}
    assert missing == {}


def test_the_newest_links_show_other_counters() -> None:
    link, missing = nvlink(NvLinkSpec(1, 7, {}, NEW_COUNTS), COUNTER)
    assert len(link.errors) == 9
    assert (link.errors["malformed_packets"], link.errors["effective_errors"]) == (1, 9)
    assert missing == {}


def test_a_link_that_reports_no_counters_has_one_reason() -> None:
    link, missing = nvlink(NvLinkSpec(1, 4), COUNTER)
    assert (link.errors, missing) == ({}, {"errors": "NOT_SUPPORTED"})
