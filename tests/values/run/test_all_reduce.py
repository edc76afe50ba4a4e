import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gputopo.values.errors import UsageError
from gputopo.values.run.all_reduce import MAX_PARTS, NAMES, PATTERN, Reduction, parse


def test_names_parts_and_the_names_of_tf_cnn_benchmarks_are_understood() -> None:
    cases: list[tuple[str, Reduction]] = [
        ("copy", Reduction("copy")),
        ("copy-roundrobin", Reduction("copy")),
        ("XRing#2", Reduction("ring", 2)),
        (" pscpu#3 ", Reduction("pscpu", 3)),
    ]
    for text, reduction in cases:
        assert parse(text) == reduction


def test_what_is_no_reduction_is_refused_with_what_is_one() -> None:
    cases: list[tuple[str, str, str]] = [
        ("rign", "no reduction 'rign'", "ring"),
        ("collective#2", "collective takes no number of parts", "remove #2"),
        ("ring#0", "no number of parts", "1 to 64"),
        ("ring#²", "no number of parts", "1 to 64"),
        (f"ring#{MAX_PARTS + 1}", "no number of parts", "1 to 64"),
        ("nccl/xring", "combines several", "one of copy"),
    ]
    for text, says, hint in cases:
        with pytest.raises(UsageError) as refused:
            parse(text)
        assert says in refused.value.what
        assert hint in refused.value.hint


@given(st.text(max_size=12))
@example("#\n0")
def test_any_text_is_a_reduction_or_refused_in_words(text: str) -> None:
    try:
        found = parse(text)
    except UsageError:
        return
    assert parse(found.written) == found


@given(st.sampled_from(NAMES), st.integers(1, MAX_PARTS))
def test_what_is_written_is_read_back_and_fits_the_pattern_of_plans(name: str, parts: int) -> None:
    one = Reduction(name, parts if name in ("ring", "pscpu", "psgpu") else 1)
    assert parse(one.written) == one
    assert re.search(PATTERN, one.written)


def test_what_cannot_work_there_is_refused_with_the_nearest_that_can() -> None:
    cases: list[tuple[str, str, int, str]] = [
        ("nccl", "cpu", 2, "collective"),
        ("nccl_op", "cpu", 2, "collective"),
        ("tf_hierarchical", "gpu", 3, "hierarchical"),
        ("psgpu#3", "gpu", 2, "psgpu#2"),
    ]
    for text, backend, towers, nearest in cases:
        why_not = parse(text).why_not(backend, towers)  # type: ignore[arg-type]
        assert why_not is not None
        assert why_not[1] == nearest
        assert parse(nearest).why_not(backend, towers) is None  # type: ignore[arg-type]


@given(st.sampled_from(NAMES), st.integers(1, 64), st.integers(1, 16), st.sampled_from(["cpu", "gpu"]))
def test_the_nearest_can_always_be_used(name: str, parts: int, towers: int, backend: str) -> None:
    asked = Reduction(name, parts if name in ("ring", "pscpu", "psgpu") else 1)
    why_not = asked.why_not(backend, towers)  # type: ignore[arg-type]
    if why_not is not None:
        assert parse(why_not[1]).why_not(backend, towers) is None  # type: ignore[arg-type]
