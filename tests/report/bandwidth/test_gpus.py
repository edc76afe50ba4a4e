"""The table of the GPUs: every kind of copy has a column of its own, and nothing stands for another."""

from typing import Any

from msgspec.structs import replace

from gputopo.report import bandwidth_document, document_markdown, document_text
from gputopo.values.bandwidth import (
    Bandwidth,
    Conditions,
    CopyLatency,
    CopyRate,
    CopyRateKind,
    Expectation,
    Method,
    Run,
    Sample,
    Samples,
)
from gputopo.values.ends import End
from tests.invented_bandwidths import machine_with
from tests.report.shown import sections_of, table_of


def host(kind: CopyRateKind, gpu: int, gb_per_s: float, **more: Any) -> CopyRate:
    source, destination = (f"gpu:{gpu}", "host") if kind == "d2h" else ("host", f"gpu:{gpu}")
    return CopyRate(
        kind=kind,
        source=End(source),
        destination=End(destination),
        pinned=True,
        median_gb_per_s=gb_per_s,
        **more,
    )


def columns(*samples: Sample, gpus: int = 2) -> dict[str, tuple[str, ...]]:
    """Return the cells of each column by its head in one line."""
    bandwidth = Bandwidth(source="test", samples=Samples(samples))
    (part,) = sections_of(bandwidth_document(machine_with(gpus), bandwidth, (), whole=True), "GPUs, GB/s")
    _, *found = table_of(part).columns
    return {one.head.replace("\n", " "): one.cells for one in found}


def notes(*samples: Sample, gpus: int = 2) -> str:
    text = document_text(
        bandwidth_document(
            machine_with(gpus), Bandwidth(source="test", samples=Samples(samples)), (), whole=True
        ),
        300,
    )
    assert "".join(text.split()) != ""
    return text


def test_one_gpu_both_directions_is_not_all_at_once() -> None:
    rates: tuple[tuple[CopyRateKind, int, float], ...] = (
        ("h2d", 0, 45.5),
        ("h2d", 1, 50.5),
        ("d2h", 0, 34.5),
        ("d2h", 1, 50.25),
    )
    samples = [
        host(kind, gpu, speed, group=f"{kind} both gpu:{gpu}", with_reverse=True)
        for kind, gpu, speed in rates
    ]  # fmt: skip
    assert columns(*samples) == {"both: to": ("45.5", "50.5"), "both: from": ("34.5", "50.2")}


def test_half_a_link_that_was_seen_is_shown() -> None:
    links = (Conditions(gpu=0, pcie_gen=3), Conditions(gpu=1, pcie_width=8), Conditions(gpu=2))
    seen = [host("h2d", one.gpu, 12.0, conditions=(one,)) for one in links]
    assert columns(*seen, gpus=3)["link seen"] == ("gen3 x?", "gen? x8", "-")


def test_all_at_once_is_of_all_gpus_and_nothing_less() -> None:
    alone = [host("h2d", gpu, 55.0) for gpu in range(3)]
    pair = [host("h2d", gpu, 30.0, group="pair") for gpu in (0, 1)]
    whole = [host("h2d", gpu, 20.0 + gpu, group="all") for gpu in range(3)]
    assert "all at once to" not in columns(*alone, *pair, gpus=3)
    found = columns(*alone, *pair, *whole, gpus=3)
    assert found["all at once to"] == ("20.0", "21.0", "22.0")
    both = [replace(one, with_reverse=True, group="all both", median_gb_per_s=9.0) for one in whole]
    found = columns(*alone, *whole, *both, gpus=3)
    assert found["all at once to"] == ("20.0", "21.0", "22.0")
    assert found["all, both: to"] == ("9.00", "9.00", "9.00")


def test_a_gpu_that_failed_in_one_direction_does_not_hide_the_others_at_once() -> None:
    alone = [host("h2d", gpu, 55.0) for gpu in (0, 1)] + [host("d2h", gpu, 55.0) for gpu in range(3)]
    whole = [host("h2d", gpu, 20.0, group="h2d all that answer") for gpu in (0, 1)]
    assert columns(*alone, *whole, gpus=3)["all at once to"] == ("20.0", "20.0", "-")


def test_a_kernel_s_copies_are_never_those_of_the_copy_engine() -> None:
    engine, kernel = (host("d2h", 0, speed, method=method) for speed, method in
                      ((295.15, "copy_engine"), (352.0, "kernel_write")))  # fmt: skip
    both = columns(engine, kernel)
    assert (both["from GPU"][0], both["kernel from"][0]) == ("295", "352")
    alone = columns(kernel)
    assert alone == {"kernel from": ("352",)}


def latency(us: float, method: Method) -> CopyLatency:
    return CopyLatency(
        kind="latency", source=End("host"), destination=End("gpu:0"), method=method, median_us=us
    )


def test_latencies_of_two_methods_are_two_columns() -> None:
    found = columns(latency(0.57, "kernel_read"), latency(8.5, "copy_engine"))
    assert found == {"latency us (load) to": ("0.57",), "latency us (16 B copy) to": ("8.50",)}


def test_a_number_that_is_not_used_has_a_mark_and_a_reason_and_no_share() -> None:
    fast = CopyRate(
        kind="d2d_local",
        source=End("gpu:0"),
        destination=End("gpu:0"),
        median_gb_per_s=4374.0,
        expectation=Expectation(gb_per_s=768.0),
        invalid="cache",
    )
    assert columns(fast) == {"inside GPU read+write": ("4374?",)}
    text = notes(fast)
    assert "570" not in text
    assert "?: not used, faster than the memory of the GPU: the speed of its cache: d2d_local gpu:0" in text
    assert "4374?" in document_markdown(
        bandwidth_document(
            machine_with(1), Bandwidth(source="test", samples=Samples((fast,))), (), whole=True
        )
    )
    valid = replace(fast, invalid=None, median_gb_per_s=700.0)
    assert columns(fast, valid)["inside GPU read+write"] == ("700 of 768",)


def test_several_runs_that_differ_are_a_range_and_those_that_agree_one_number() -> None:
    def of(*values: float) -> CopyRate:
        runs = tuple(Run(name=f"run {place}", value=value) for place, value in enumerate(values))
        return host("h2d", 0, sorted(values)[0], runs=runs)

    assert columns(of(24.6, 72.7))["to GPU"] == ("24.6-72.7",)
    assert "runs disagree; the range is shown without a verdict: h2d host to gpu:0" in notes(of(24.6, 72.7))
    assert columns(of(24.6, 24.7))["to GPU"] == ("24.6",)
    assert "several runs" not in notes(of(24.6, 24.7))


def test_a_gpu_with_an_expectation_has_it_beside_its_number() -> None:
    known, unknown = host("h2d", 0, 12.0, expectation=Expectation(gb_per_s=12.5)), host("h2d", 1, 12.0)
    assert columns(known, unknown) == {"to GPU": ("12.0 of 12.5", "12.0")}
