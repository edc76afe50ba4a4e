"""A sample of a GPU: its fields are facts of the GPU, and the latest of each is known."""

from gputopo.values.fields import fields_of
from gputopo.values.machine import Gpu
from gputopo.values.run.events import SAMPLED_FACTS, GpuSample


def test_each_declared_field_of_a_sample_is_a_fact_of_a_gpu_that_passes_or_can_be_set() -> None:
    facts = fields_of(Gpu)
    for name, fact in SAMPLED_FACTS.items():
        assert name in GpuSample.__struct_fields__
        assert facts[fact.path].leaf
        assert facts[fact.path].stability != "fixed"


def test_a_sample_takes_what_it_does_not_report_from_the_sample_before() -> None:
    first = GpuSample(gpu=1, graphics_mhz=1700, temperature_c=60, pcie_replays=3)
    second = GpuSample(gpu=1, graphics_mhz=1600, throttle_mask=0)
    assert second.with_earlier(first) == GpuSample(
        gpu=1, graphics_mhz=1600, temperature_c=60, throttle_mask=0, pcie_replays=3
    )
    assert second.with_earlier(None) == second


def test_nothing_is_known_of_a_lost_gpu_until_it_answers_again() -> None:
    first, lost = GpuSample(gpu=1, graphics_mhz=1700), GpuSample(gpu=1, lost=True)
    assert lost.with_earlier(first) == lost
    back = GpuSample(gpu=1, temperature_c=40)
    assert back.with_earlier(lost) == back
