import msgspec

from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from tests.findings.boxes import TIMES, at_times, find


def rising(machine: Machine) -> list[Finding]:
    return [finding for finding in find(machine) if finding.id == "errors.rising"]


def test_a_counter_that_rises_between_two_samples_is_a_finding() -> None:
    (found,) = rising(at_times({"ecc.corrected_volatile": 3}, {"ecc.corrected_volatile": 7}))
    assert (found.severity, found.subject.text) == ("info", "gpu:1")
    assert "ECC corrected volatile by 4" in found.says
    assert found.evidence["rose"] == {"ecc.corrected_volatile": 4}


def test_data_that_was_lost_is_a_warning() -> None:
    (found,) = rising(at_times({"pcie.aer": {"fatal": 0}}, {"pcie.aer": {"fatal": 1}}))
    assert found.severity == "warning"


def test_a_counter_that_was_reset_starts_again() -> None:
    counts = [{"ecc.uncorrected_volatile": count} for count in (5, 0, 2)]
    assert rising(at_times(*counts))[0].evidence["rose"] == {"ecc.uncorrected_volatile": 2}


def test_a_few_replays_a_minute_are_allowed() -> None:
    assert rising(at_times({"pcie.replay_counter": 0}, {"pcie.replay_counter": 8})) == []
    assert rising(at_times({"pcie.replay_counter": 0}, {"pcie.replay_counter": 9}))[0].severity == "warning"


def test_without_times_nothing_is_known_to_rise() -> None:
    counts = [{"ecc.corrected_volatile": count} for count in (3, 7)]
    machine = at_times(*counts)
    untimed = tuple(msgspec.structs.replace(sample, time=None) for sample in machine.samples)
    assert rising(msgspec.structs.replace(machine, samples=untimed)) == []
    assert rising(at_times(*counts, times=[TIMES[0], "no time"])) == []
