from gputopo.findings import find
from tests.findings.boxes import all_of, every_gpu, gpu, sound


def test_a_mixed_box_lists_its_models() -> None:
    machine = gpu(3, name="Tesla V100-PCIE-16GB", nvlinks=())(sound())
    (found,) = find(machine)
    assert (found.id, found.severity, found.subject.text) == ("machine.mixed_models", "info", "machine")
    assert found.evidence["models"] == {"Tesla V100-SXM2-16GB": [0, 1, 2], "Tesla V100-PCIE-16GB": [3]}


def test_other_memory_of_another_model_is_no_second_finding() -> None:
    machine = gpu(3, name="Tesla V100-PCIE-16GB", nvlinks=(), memory_mib={"total": 32_000})(sound())
    assert [finding.id for finding in find(machine)] == ["machine.mixed_models"]


def test_memory_that_error_correction_takes_is_no_other_size() -> None:
    assert find(gpu(1, memory_mib={"total": 15_150})(sound())) == ()  # 1/16 less
    (found,) = find(gpu(1, memory_mib={"total": 12_000})(sound()))
    assert (found.id, found.subject.text) == ("machine.mixed_memory", "gpu:1")


def test_an_unknown_card_is_told_as_not_compared() -> None:
    (found,) = find(every_gpu(name="NVIDIA Future 9000")(sound()))
    assert (found.id, found.severity, found.subject.text) == ("card.no_expectation", "info", "gpus:0-3")
    assert "no reference data" in found.says


def test_two_unknown_models_are_told_one_by_one() -> None:
    machine = all_of(*(gpu(n, name=f"NVIDIA Future {n // 2}") for n in range(4)))(sound())
    assert [(finding.id, finding.subject.text) for finding in find(machine)] == [
        ("machine.mixed_models", "machine"),
        ("card.no_expectation", "gpus:0-1"),
        ("card.no_expectation", "gpus:2-3"),
    ]


def test_a_card_without_a_name_is_not_called_unknown() -> None:
    assert find(every_gpu(name=None)(sound())) == ()
