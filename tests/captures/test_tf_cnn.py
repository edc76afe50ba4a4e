"""Logs of tf_cnn_benchmarks of several years; all written here, none copied."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures.samples import runs_in


def log(
    *,
    total: str | None = "801.20",
    header: str = "",
    devices: int = 4,
    batch: str = "64",
    tail: str = "",
    prefix: str = "",
) -> str:
    names = ", ".join(f"'/gpu:{number}'" for number in range(devices))
    lines = [
        "TensorFlow:  1.13",
        "Model:       resnet50",
        "Dataset:     imagenet (synthetic)",
        "Mode:        training",
        f"Batch size:  {int(float(batch)) * devices} global",
        f"             {batch} per device",
        f"Devices:     [{names}]",
        "Data format: NCHW",
        "Optimizer:   sgd",
        "Variables:   replicated",
        "AllReduce:   nccl",
        *header.splitlines(),
        "==========",
        "Running warm up",
        "Done warm up",
        "Step\tImg/sec\ttotal_loss",
        "1\timages/sec: 799.1 +/- 0.0 (jitter = 0.0)\t8.1",
        "100\timages/sec: 801.5 +/- 0.9 (jitter = 4.2)\t7.9",
        *([] if total is None else ["-" * 64, f"total images/sec: {total}", "-" * 64]),
        *tail.splitlines(),
    ]
    return "\n".join(prefix + line for line in lines) + "\n"


def test_a_log_has_its_last_total_with_conditions_and_spread() -> None:
    (one,) = runs_in(log())

    assert (one.images_per_sec, one.uncertainty, one.jitter, one.steps) == (801.2, 0.9, 4.2, 100)
    assert (one.n_gpus, one.batch_per_gpu, one.model, one.version) == (4, 64, "resnet50", "1.13")
    assert (one.variable_update, one.all_reduce, one.data_format, one.data) == (
        "replicated", "nccl", "NCHW", "synthetic",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        (log(batch="256.0"), "batch_per_gpu", 256),  # Python 3 divided with a point in 2017
        (log(prefix="I0624 16:50:09.913040 140331392505664 benchmark_cnn.py:2035] "), "n_gpus", 4),
        (log(header="Use NCCL:    True").replace("AllReduce:   nccl\n", ""), "all_reduce", "nccl"),
        (log().replace("imagenet (synthetic)", "imagenet"), "data", "real"),
        (log().replace("Mode:        training", "Mode:        forward-only"), "task", "forward"),
        (log().replace("'/gpu:", "'horovod/gpu:"), "n_gpus", 4),
        (
            "+ python tf_cnn_benchmarks.py --num_gpus=4 --use_fp16 --xla_compile\n" + log(),
            "precision",
            "fp16",
        ),
        ("+ python tf_cnn_benchmarks.py --num_gpus=4 --use_fp16 --xla_compile\n" + log(), "xla", True),
        ("1\timages/sec: 5.7 +/- 0.0 (jitter = nan)\t8.1\ntotal images/sec: 5.26\n", "jitter", None),
    ],
)
def test_headers_of_all_years_are_read(text: str, field: str, value: object) -> None:
    (one,) = runs_in(text)
    assert getattr(one, field) == value


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (
            "tensorflow...ResourceExhaustedError: OOM when allocating tensor with shape[64,256,56,56]",
            "out of memory",
        ),
        ("./run.sh: line 12:  4242 Segmentation fault      (core dumped) python", "segmentation fault"),
        ("", "the log ends after step 100, without a total"),
    ],
)
def test_a_run_without_a_total_failed_with_its_reason_and_has_no_figure(tail: str, reason: str) -> None:
    (one,) = runs_in(log(total=None, tail=tail))

    assert one.status == "failed"
    assert reason in (one.reason or "")
    assert one.images_per_sec is None


def test_a_total_of_zero_is_a_failure_not_a_figure() -> None:
    (one,) = runs_in(log(total="0.00"))
    assert (one.status, one.images_per_sec, one.reason) == ("failed", None, "its total is 0 images/sec")


def test_several_runs_in_one_log_are_kept_apart_also_where_one_failed() -> None:
    text = log(total="100.00") + log(total=None, tail="Killed") + log(total="300.00", devices=2)
    found = runs_in(text)

    assert [one.images_per_sec for one in found] == [100.0, None, 300.0]
    assert found[1].reason == "killed"
    assert [one.n_gpus for one in found] == [4, 4, 2]


def test_gpus_of_a_log_are_named_with_their_boost_clocks() -> None:
    lines = [
        f"Found device {n} with properties:\nname: GeForce GTX 1070\ncoreClock: 1.{n}83GHz\n" for n in (6, 7)
    ]
    text = "".join(lines).replace("device 6", "device 0").replace("device 7", "device 1")
    made = "".join(
        f"-> physical GPU (device: {n}, name: GeForce GTX 1070, pci bus id: 0000:0{n}:00.0)\n" for n in (0, 1)
    )
    (one,) = runs_in(text + made + log(devices=2))

    assert one.gpu == "GeForce GTX 1070"
    assert [device.graphics_mhz for device in one.devices] == [1683.0, 1783.0]


@given(
    st.text(alphabet=st.sampled_from("0123456789. \t\n'[]/gpu:Devicestotal images/sec:=-+()"), max_size=400)
)
def test_no_text_breaks_the_reader(text: str) -> None:
    for one in runs_in("images/sec: \n" + text):
        assert one.images_per_sec is None or one.images_per_sec > 0
        assert one.n_gpus >= 1


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "logs/Gold_6230-GeForce_RTX_2080_Ti_NVLink_XLA_trt_TF1_15.logs/real-replicated-fp16-8gpus-distortions/"
            "resnet50-64/throughput/1",
            {"cpu": "Gold 6230", "gpu": "GeForce RTX 2080 Ti", "xla": True, "precision": "fp16", "n_gpus": 8,
             "model": "resnet50", "batch_per_gpu": 64, "data": "real", "distortions": True},
        ),
        (
            "7742-4xA100-SXM4-40GB_TF2_3.logs/syn-replicated-fp32-4gpus-inference/inception4-56/throughput/1",
            {"cpu": "7742", "gpu": "A100-SXM4-40GB", "task": "forward", "xla": False},
        ),
        ("notes/readme.log", {"model": "unknown", "cpu": None}),
    ],
)  # fmt: skip
def test_names_of_lambdas_folders_are_facts(path: str, expected: dict[str, object]) -> None:
    bare = "1\timages/sec: 5.7 +/- 0.0 (jitter = nan)\t8.1\ntotal images/sec: 5.26\n"
    (found,) = runs_in(bare, path)
    assert {name: getattr(found, name) for name in expected} == expected
