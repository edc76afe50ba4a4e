import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest

from gputopo.launch import Job, Site
from gputopo.values.errors import InputError, UsageError
from gputopo.values.machine import Machine
from gputopo.values.option import Text, given_of, options_of
from gputopo.values.run.drill import Drill
from gputopo.values.run.placement import PlanOptions
from gputopo.values.run.readers import read_alarm, read_schedule
from gputopo.values.run.spec import RunSpec, Schedule

OPTIONS = options_of(RunSpec)


def text_of(value: Any) -> Text:
    """A value as it is typed."""
    return value if isinstance(value, bool | list) else str(value)


def spec(model: str = "alexnet", **typed: Any) -> RunSpec:
    """What runs on two CPU devices with these options."""
    texts = {name: text_of(value) for name, value in typed.items() if value is not False}
    job = Job(model, given_of(PlanOptions, texts), given_of(RunSpec, texts))
    return job.spec_of(job.placed(Site(Machine(source="live")).target(job.request)))


def test_without_any_option_the_spec_is_plain() -> None:
    made, plain = spec(), RunSpec(model="alexnet", devices=(), backend="cpu", batch_size=1)
    for part in ("optimization", "precision", "exchange", "data", "lifecycle", "runtime", "task", "asked"):
        assert getattr(made, part) == getattr(plain, part)


GIVEN: list[tuple[dict[str, Any], str, Any]] = [
    ({"task": "forward"}, "task", "forward"),
    ({"task": "input", "data_source": "cpu"}, "task", "input"),
    ({"strategy": "kuza55"}, "method", "kuza55"),
    ({"strategy": "mirrored:one"}, "strategy", "mirrored:one"),
    ({"data_name": "cifar10"}, "model", "alexnet-cifar10"),
    ({"ps": "gpu:spread"}, "exchange.ps_spread", True),
    ({"ps": "gpu:1"}, "ps_device", "/CPU:1"),
    ({"variable_update": "independent"}, "variable_update", "independent"),
    ({"staged_vars": True}, "exchange.staged", True),
    ({"variable_consistency": "relaxed"}, "exchange.relaxed", True),
    ({"async_": True}, "exchange.asynchronous", True),
    ({"all_reduce": "xring#2"}, "all_reduce", "ring#2"),
    ({"all_reduce": "ring"}, "variable_update", "replicated"),
    ({"gradient_repacking": 4}, "exchange.repacking", 4),
    ({"agg_small_grads_max_bytes": 64}, "exchange.small_bytes", 64),
    ({"agg_small_grads_max_bytes": 64, "agg_small_grads_max_group": 3}, "exchange.small_group", 3),
    ({"fp16_transfer": True}, "exchange.transfer", "fp16"),
    ({"grad_reduce": "sum"}, "grad_reduce", "sum"),
    ({"optimizer": "momentum", "momentum": 0.5}, "optimization.momentum", 0.5),
    ({"optimizer": "momentum", "nesterov": True}, "optimization.nesterov", True),
    ({"weight_decay": 4e-5}, "optimization.weight_decay", 4e-5),
    ({"gradient_clip": 1.0}, "optimization.gradient_clip", 1.0),
    ({"gradient_clip_norm": 2.0}, "optimization.gradient_clip_norm", 2.0),
    ({"on_nan": "warn"}, "optimization.on_nan", "warn"),
    ({"learning_rate": 0.25}, "learning_rate", 0.25),
    ({"learning_rate": 0.25, "scale_learning_rate": True}, "learning_rate", 0.5),
    ({"learning_rate_schedule": "cosine:50"}, "optimization.schedule.decay_steps", 50),
    ({"learning_rate_warmup_steps": 7}, "optimization.schedule.warmup_steps", 7),
    ({"precision": "bf16"}, "precision.compute", "bf16"),
    ({"precision": "fp16"}, "precision.loss_scale", 128.0),
    ({"precision": "fp16", "loss_scale": "8"}, "precision.loss_scale", 8.0),
    ({"precision": "fp16", "loss_scale": "auto"}, "precision.auto_loss_scale", True),
    ({"xla": True}, "precision.xla", True),
    ({"data_format": "nchw"}, "data_format", "NCHW"),
    ({"data_source": "cpu"}, "data.source", "cpu"),
    ({"data_source": "python", "feed": "staged"}, "data.feed", "staged"),
    ({"data_source": "cpu", "prefetch": 3}, "data.prefetch", 3),
    ({"checkpoints": "/kept", "checkpoint_steps": 5}, "lifecycle.checkpoint_steps", 5),
    ({"checkpoints": "/kept", "keep_checkpoints": 2}, "lifecycle.keep_checkpoints", 2),
    ({"checkpoints": "/kept", "resume": ""}, "lifecycle.resume", True),
    ({"checkpoints": "/kept", "resume": "auto"}, "lifecycle.resume_or_start", True),
    ({"export": "/out"}, "lifecycle.export", "/out"),
    ({"trace": "3,5-6"}, "lifecycle.trace_steps", (3, 5, 6)),
    ({"tensorboard": "/board"}, "lifecycle.tensorboard", "/board"),
    ({"deterministic": True}, "precision.deterministic", True),
    ({"num_intra_threads": 1}, "runtime.intra_threads", 1),
    ({"num_inter_threads": 2}, "runtime.inter_threads", 2),
    ({"num_warmup_batches": "4"}, "num_warmup_batches", 4),
    ({"num_warmup_batches": "auto"}, "min_warmup_s", 1.0),
    ({"batch_size": 3}, "batch_size", 3),
    ({"batch_size": "3,5"}, "batch_size", (3, 5)),
    ({"num_batches": 9}, "num_batches", 9),
    ({"seed": 9}, "seed", 9),
    ({"drill": ["hang@2"]}, "drills", (Drill(fault="hang", step=2),)),
]


def test_an_option_comes_to_its_field_of_the_spec() -> None:
    for given_, field, value in GIVEN:
        found: Any = spec(**given_)
        for part in field.split("."):
            found = getattr(found, part)
        assert found == value
        assert set(spec(**given_).asked) == {name.rstrip("_") for name in given_}


def test_every_option_that_changes_a_spec_is_tried_above_or_needs_more() -> None:
    tried = set(itertools.chain.from_iterable(given_ for given_, _, _ in GIVEN))
    # Real data needs a folder, GPU settings a GPU; those of the output change no spec.
    elsewhere = {
        "data_dir",
        "distortions",
        "resize_method",
        "cache",
        "bad_records",
        "datasets_num_private_threads",
    }
    elsewhere |= {"gpu_thread_mode", "per_gpu_thread_count", "gpu_memory_limit", "tf32"}
    assert {option.name for option in OPTIONS} - tried == elsewhere


def test_options_of_real_data_come_to_the_spec(tmp_path: Path) -> None:
    made = spec(
        "resnet50",
        data_dir=str(tmp_path),
        distortions=True,
        resize_method="area",
        cache="decoded",
        bad_records="skip",
        datasets_num_private_threads=2,
    ).data
    assert (made.folder, made.name, made.private_threads) == (str(tmp_path), "imagenet", 2)
    assert (made.distortions, made.resize, made.cache, made.bad_records) == (True, "area", "decoded", "skip")


def test_the_schedule_of_a_models_authors_knows_the_batch() -> None:
    made = spec("resnet20", learning_rate_schedule="model", batch_size=50)
    assert made.optimization.schedule.kind == "piecewise"
    assert made.optimization.schedule.boundaries[0] == 82 * 500 + 1
    assert made.learning_rate == 0.1


def test_a_schedule_is_one_word() -> None:
    cases: list[tuple[str, Schedule]] = [
        ("constant", Schedule()),
        ("exponential:1000:0.5", Schedule(kind="exponential", decay_steps=1000, decay=0.5)),
        ("exponential:1000", Schedule(kind="exponential", decay_steps=1000, decay=0.1)),
        (
            "piecewise:30=0.1,60=0.01",
            Schedule(kind="piecewise", boundaries=(30, 60), factors=(1.0, 0.1, 0.01)),
        ),
    ]
    for text, schedule in cases:
        assert Schedule(**read_schedule("--learning-rate-schedule", text)) == schedule


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for option in ("checkpoints", "export", "tensorboard", "data_dir"):
        with pytest.raises(InputError, match="is not a folder"):
            spec(**{option: str(tmp_path / "file")})


def test_a_web_address_is_refused_with_the_command_that_posts_to_it() -> None:
    address = "https://example.org/hook?a=1&b=2"
    with pytest.raises(UsageError, match="is a web address") as caught:
        read_alarm("--on-anomaly", address)
    flag, command = shlex.split(caught.value.hint.removeprefix("use "))
    words = shlex.split(command)
    assert (flag, words[0], words[-3:]) == ("--on-anomaly", "curl", ["-d", "@-", address])
