import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.findings import rules
from gputopo.reference import CLOCK_EVENT_BITS
from gputopo.values.history import History
from gputopo.values.run.events import GpuSample, MachineSample, Xid
from tests.findings.boxes import IDS, every_gpu, sound
from tests.findings.watched import IDLE, find_watched, found, samples, watched

IDLING = GpuSample(gpu=1, **IDLE)


def test_steady_work_and_idling_have_no_findings() -> None:
    assert found([samples()] * 100) == ()
    assert found([IDLING] * 100) == ()


def test_a_link_that_changes_under_load_is_flapping_and_the_changes_are_counted() -> None:
    (finding,) = found([samples(pcie_gen=3 if number % 2 else 2) for number in range(12)])
    assert (finding.id, finding.subject.text, finding.severity) == ("pcie.link_flapping", "gpu:1", "warning")
    assert finding.evidence["changes"] == 10  # 11 changes, the first is from the end of power saving
    assert finding.evidence["generations"] == {"2": 6, "3": 6}


@pytest.mark.parametrize(("changes", "ids"), [(2, []), (3, ["pcie.link_flapping"])])
def test_three_changes_of_generation_or_lanes_are_flapping(changes: int, ids: list[str]) -> None:
    for other in ({"pcie_gen": 2}, {"pcie_width": 8}):
        steps = [samples(**(other if number % 2 else {})) for number in range(1, changes + 1)]
        assert [one.id for one in found([samples()] * 5 + steps)] == ids


def test_power_saving_between_bursts_of_work_is_no_flapping() -> None:
    # The link is at full speed in the first sample under load, or in the one after it.
    burst = [IDLING, samples(pcie_gen=1), samples(), samples(), samples(), IDLING]
    assert found(burst * 30) == ()


def test_a_link_that_never_reaches_its_generation_under_load_is_degraded() -> None:
    (finding,) = found([samples(pcie_gen=1)] * 20)
    assert (finding.id, finding.subject.text) == ("pcie.generation_degraded", "gpu:1")
    assert (finding.evidence["best"], finding.evidence["due"]) == (1, 3)
    low, due = finding.evidence["copy_gb_per_s"]
    assert due / low > 3  # generation 1 against 3: 2.5 and 8 GT/s, and another line code


@pytest.mark.parametrize(("slow", "ids"), [(19, []), (20, ["pcie.generation_degraded"])])
def test_a_link_that_fell_for_twenty_samples_is_degraded(slow: int, ids: list[str]) -> None:
    assert [one.id for one in found([samples()] * 30 + [samples(pcie_gen=1)] * slow)] == ids
    narrow = found([samples()] * 30 + [samples(pcie_width=8)] * slow)
    assert [one.id for one in narrow] == [one.replace("generation", "width") for one in ids]
    assert found([samples(pcie_gen=1), *[samples()] * slow]) == ()  # it rose


@pytest.mark.parametrize("reason", ["sw_power_cap", "hw_slowdown", "board_limit"])
def test_every_slowdown_seen_while_watched_is_reported_with_its_share(reason: str) -> None:
    (finding,) = found([samples()] * 31 + [samples(throttle_mask=CLOCK_EVENT_BITS[reason])] * 10)
    assert finding.id == f"throttle.{reason}"
    assert finding.evidence["share"] == pytest.approx(10 / 40)  # 41 samples, 40 seconds
    assert finding.evidence["seconds"] == pytest.approx(10)
    (rule,) = (rule for rule in rules() if rule.id == finding.id)
    assert finding.severity == rule.severities[0]
    assert "25%" in finding.says


def test_time_that_was_not_watched_is_in_no_share() -> None:
    history = History()
    for time_s, mask in ((0.0, 0), (1.0, 4), (90_000.0, 0), (89_000.0, 0), (89_001.0, 0)):
        history.add(MachineSample(time_s=time_s, gpus=(samples(throttle_mask=mask),)))
    (finding,) = find_watched(sound(2), history)
    assert finding.evidence["share"] == pytest.approx(1 / 2)


def test_small_drift_and_one_short_dip_are_no_sagging() -> None:
    assert found([samples(graphics_mhz=1530 - number) for number in range(100)]) == ()
    assert found([samples(graphics_mhz=1900)] * 3 + [samples()] * 60) == ()  # a boost as the load begins
    assert found([samples()] * 40 + [samples(graphics_mhz=600)] + [samples()] * 20) == ()


def test_a_known_xid_is_reported_in_words_with_a_remedy() -> None:
    (finding,) = found([samples()] * 3, xids=[Xid(code=79, gpu=1)])
    assert (finding.id, finding.subject.text) == ("driver.xid", "gpu:1")
    assert "Xid 79 reported once: GPU has fallen off the bus" in finding.says
    assert finding.severity == "error"
    assert (finding.remedy or "").startswith("Reset the GPU (sudo nvidia-smi -r -i 1) or power-cycle")


def test_an_unknown_xid_is_reported_as_a_number_and_one_without_a_gpu_names_none() -> None:
    (finding,) = found([samples()] * 3, xids=[Xid(code=999), Xid(code=999)])
    assert "Xid 999 reported 2 times" in finding.says
    assert (finding.subject.text, finding.severity) == ("driver", "warning")
    assert "NVIDIA's list of Xid errors" in (finding.remedy or "")


def test_a_gpu_that_fell_off_the_bus_is_an_error_and_comes_first() -> None:
    findings = found(
        [samples(throttle_mask=4)] * 5, xids=[Xid(code=45, gpu=0), Xid(code=79, gpu=1), Xid(code=13, gpu=0)]
    )
    assert findings[0].evidence["xid"] == 79
    assert findings[0].severity == "error"
    assert [finding.severity for finding in findings] == ["error", "warning", "info", "info"]


def test_a_flood_of_xids_is_counted_without_end() -> None:
    history = watched([samples()], xids=[Xid(code=code, gpu=1) for code in range(1000)])
    findings = find_watched(sound(2), history)
    assert len(findings) == 65
    assert any(finding.evidence == {"count": 1000 - 64} for finding in findings)


def test_a_gpu_that_stops_answering_while_it_is_watched_is_lost() -> None:
    (finding,) = found([samples()] * 6 + [GpuSample(gpu=1)] * 4, xids=[Xid(code=79, gpu=1)])
    assert (finding.id, finding.severity, finding.subject.text) == ("gpu.lost", "error", "gpu:1")
    assert "no answer in 4 of 10 samples" in finding.says
    assert finding.evidence == {"silent_moments": 4, "moments": 10}


@given(
    st.lists(
        st.builds(
            MachineSample,
            time_s=st.floats(0, 1e9),
            gpus=st.lists(
                st.builds(
                    GpuSample,
                    gpu=st.integers(0, 3),
                    graphics_mhz=st.none() | st.integers(0, 3000),
                    memory_mhz=st.none(),
                    power_w=st.none() | st.floats(0, 700),
                    temperature_c=st.none() | st.integers(0, 120),
                    throttle_mask=st.none() | st.integers(0, 2**20),
                    gpu_utilization_percent=st.none() | st.integers(0, 100),
                    pcie_gen=st.none() | st.integers(0, 6),
                    pcie_width=st.none() | st.sampled_from([1, 4, 8, 16]),
                ),
                max_size=4,
            ).map(tuple),
            xids=st.lists(
                st.builds(Xid, code=st.integers(0, 200), gpu=st.none() | st.integers(0, 9)), max_size=3
            ).map(tuple),
        ),
        max_size=30,
    )
)
def test_no_history_raises_and_every_id_is_in_the_table(samples: list[MachineSample]) -> None:
    history = History()
    for sample in samples:
        history.add(sample)
    for machine in (sound(4), every_gpu(pcie={"gen_max": None})(sound(2))):
        for finding in find_watched(machine, history):
            assert finding.id in IDS
            assert finding.remedy
            assert 0 <= finding.evidence.get("share", 0) <= 1
