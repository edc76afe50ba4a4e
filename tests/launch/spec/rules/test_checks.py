import contextlib
from typing import get_args

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gputopo.launch.spec.rules import RULES, check, clash, replaced
from gputopo.launch.spec.run_spec import (
    Backend,
    Data,
    Exchange,
    Lifecycle,
    Precision,
    RunSpec,
    Runtime,
    Server,
)
from gputopo.values.errors import UsageError
from gputopo.values.run.drill import read_drills
from gputopo.values.run.events import Device
from gputopo.values.run.plan import VariableUpdate
from tests.launch.specs import cpu_spec

EXCHANGES = st.builds(
    Exchange,
    ps_spread=st.booleans(),
    staged=st.booleans(),
    relaxed=st.booleans(),
    asynchronous=st.booleans(),
    repacking=st.sampled_from([0, 2]),
    small_bytes=st.sampled_from([0, 4096]),
    transfer=st.sampled_from(["fp32", "fp16"]),
)
PRECISIONS = st.builds(
    Precision,
    compute=st.sampled_from(["fp32", "bf16", "fp16"]),
    loss_scale=st.sampled_from([1.0, 128.0]),
    auto_loss_scale=st.booleans(),
    xla=st.booleans(),
)
DATA = st.builds(
    Data,
    source=st.sampled_from(["gpu", "cpu", "python"]),
    feed=st.sampled_from(["sync", "queue", "dataset", "staged"]),
    folder=st.sampled_from([None, "/data"]),
    name=st.sampled_from(["imagenet", "cifar10"]),
    distortions=st.booleans(),
    cache=st.sampled_from([None, "raw"]),
    prefetch=st.sampled_from([0, 1, 3]),
    bad_records=st.sampled_from(["stop", "skip"]),
)
LIVES = st.builds(
    Lifecycle,
    checkpoints=st.sampled_from([None, "/kept"]),
    checkpoint_steps=st.sampled_from([None, 5]),
    keep_checkpoints=st.sampled_from([5, 2]),
    resume=st.booleans(),
    resume_or_start=st.booleans(),
    export=st.sampled_from([None, "/out"]),
    trace_steps=st.sampled_from([(), (3,), (3, 1000)]),
    training_accuracy=st.booleans(),
)
RUNTIMES = st.builds(
    Runtime,
    gpu_thread_mode=st.sampled_from(["gpu_private", "global"]),
    memory_limit_mib=st.sampled_from([None, 1024]),
)
TYPED = (
    *("all_reduce", "agg_small_grads_max_group", "optimizer", "learning_rate", "scale_learning_rate"),
    *("learning_rate_schedule", "learning_rate_warmup_steps", "weight_decay", "gradient_clip"),
    *(
        "gradient_clip_norm",
        "loss_scale",
        "on_nan",
        "ps",
        "variable_update",
        "precision",
        "xla",
        "batch_size",
    ),
    *("num_warmup_batches", "keep_checkpoints", "data_name", "data_format"),
    *("prefetch", "resize_method", "cache", "distortions"),
    *("momentum", "nesterov", "rmsprop_decay", "rmsprop_momentum", "rmsprop_epsilon"),
    *("adam_beta1", "adam_beta2", "adam_epsilon"),
)
ASKED = st.one_of(
    st.just({**dict.fromkeys(TYPED, 1), "learning_rate_schedule": "model"}),
    st.dictionaries(st.sampled_from(TYPED), st.just(1), max_size=4),
)


SERVERS = tuple(Server(host=f"n{rank}", address=f"10.0.0.{rank}:4000", cores=2) for rank in range(2))
DRILLS = read_drills("--drill", ("slow-weights=1:0.8", "nan@9", "slow-gpu=0:0.5@11"))


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    """Any combination of options, those that go together and those that do not."""
    backend = draw(st.sampled_from(get_args(Backend)))
    update = draw(st.sampled_from(get_args(VariableUpdate)))
    exchange = draw(EXCHANGES)
    held = update == "parameter_server" and not exchange.ps_spread
    towers = draw(st.integers(1, 5))
    unequal = tuple(range(3, 3 + towers))
    return RunSpec(
        model=draw(st.sampled_from(["alexnet", "resnet20", "mlp", "keras:ResNet50", "mine.models:build"])),
        devices=tuple(
            Device(tower=tower, device=f"/{backend.upper()}:{tower}", rank=tower % 2)
            for tower in range(towers)
        ),
        servers=draw(st.sampled_from([(), SERVERS])),
        backend=backend,
        task=draw(st.sampled_from(["train", "forward", "eval", "input"])),
        method=draw(st.sampled_from([None, None, "kuza55", "avolkov1"])),
        strategy=draw(
            st.sampled_from(
                [
                    *(None, None, "mirrored", "mirrored:NcclAllReduce", "mirrored:hierarchical"),
                    *("one-device", "mwms", "multi_worker_mirrored:nccl"),
                ]
            )
        ),
        variable_update=update,
        ps_device=f"/{backend.upper()}:0" if held else None,
        all_reduce=draw(st.sampled_from([None, "copy", "nccl_op", "ring#2", "tf_hierarchical", "psgpu#4"])),
        grad_reduce=draw(st.sampled_from(["mean", "sum"])),
        batch_size=draw(st.sampled_from([4, 4, unequal if towers > 1 else 4])),
        num_batches=draw(st.sampled_from([None, 10])),
        precision=draw(PRECISIONS),
        exchange=exchange,
        data=draw(DATA),
        lifecycle=draw(LIVES),
        runtime=draw(RUNTIMES),
        drills=draw(st.sampled_from([(), DRILLS])),
        asked=draw(ASKED),
    )


@given(spec=specs())
def test_whatever_is_combined_the_advice_leads_to_a_run_that_is_not_refused(spec: RunSpec) -> None:
    for _ in range(2 * len(RULES)):
        found = clash(spec)
        if found is None:
            break
        with pytest.raises(UsageError) as refused:
            check(spec)
        assert (refused.value.what, refused.value.hint) == (found.what, found.use)
        assert "\n" not in found.what + found.use
        assert "--" in found.what
        assert found.nearest != spec
        spec = found.nearest
    assert clash(spec) is None
    check(spec)


@given(spec=specs())
def test_a_rule_does_not_apply_to_what_it_advises(spec: RunSpec) -> None:
    for rule in RULES:
        if rule.when(spec):
            assert not rule.when(rule.nearest(spec)), rule.what


COPIES: dict[str, object] = {"variable_update": "replicated", "ps_device": None}
SHORT = Precision(compute="fp16", loss_scale=128.0, auto_loss_scale=True, xla=True)


def test_a_plain_run_and_one_of_each_kind_are_not_refused() -> None:
    plain = (
        cpu_spec(),
        cpu_spec(exchange=Exchange(staged=True)),
        cpu_spec(exchange=Exchange(asynchronous=True)),
        cpu_spec(variable_update="replicated", ps_device=None, all_reduce="ring"),
        cpu_spec(variable_update="independent", ps_device=None),
        cpu_spec(method="kuza55"),
        cpu_spec(strategy="mirrored", **COPIES),
        cpu_spec(strategy="central"),
        cpu_spec(**JOINED),
        cpu_spec(**{**JOINED, "backend": "gpu", "devices": on_hosts(4, 4), "strategy": "mwms:nccl"}),
        cpu_spec(method="fchollet", precision=SHORT),
        cpu_spec(strategy="mirrored", precision=SHORT, **COPIES),
        cpu_spec(task="input", data=Data(source="python", feed="queue")),
        cpu_spec(servers=SERVERS, **COPIES, all_reduce="hierarchical", precision=Precision(xla=True)),
        cpu_spec(task="eval", lifecycle=Lifecycle(checkpoints="/kept")),
    )
    assert [clash(spec) for spec in plain] == [None] * len(plain)


CIFAR = {"model": "resnet20", "data": Data(folder="/d", name="cifar10")}
JUDGED = {"task": "eval", "lifecycle": Lifecycle(checkpoints="/kept")}
REPLICATED = {**COPIES, "all_reduce": "copy"}


def on_hosts(*counts: int) -> tuple[Device, ...]:
    """Return so many devices on each host."""
    ranks = [rank for rank, count in enumerate(counts) for _ in range(count)]
    return tuple(Device(tower=tower, device=f"/{tower}", rank=rank) for tower, rank in enumerate(ranks))


JOINED = {"strategy": "mwms", **COPIES, "servers": SERVERS, "devices": on_hosts(1, 1)}


@pytest.mark.parametrize(
    ("changes", "what", "use"),
    [
        ({"precision": Precision(loss_scale=128.0)}, "--loss-scale", "--precision fp16"),
        ({"exchange": Exchange(staged=True), **REPLICATED}, "--staged-vars", "parameter_server"),
        ({"exchange": Exchange(relaxed=True)}, "--variable-consistency relaxed", "replicated"),
        ({"exchange": Exchange(asynchronous=True), **REPLICATED}, "--async", "parameter_server"),
        ({**REPLICATED, "all_reduce": "nccl"}, "--all-reduce nccl", "--all-reduce collective"),
        (
            {**REPLICATED, "all_reduce": "nccl_op", "servers": SERVERS},
            "--all-reduce nccl_op is within one process",
            "hierarchical",
        ),
        ({"method": "kuza55", "servers": SERVERS}, "--method kuza55 is for one host", "--num-hosts 1"),
        ({"strategy": "mirrored", **COPIES, "servers": SERVERS}, "--strategy mirrored", "--num-hosts 1"),
        ({"strategy": "mirrored", **COPIES, "servers": SERVERS}, "for one host", "multi_worker_mirrored"),
        ({"strategy": "mwms", **COPIES}, "--strategy mwms is for several hosts", "--strategy mirrored"),
        ({**JOINED, "devices": on_hosts(2, 2)}, "one CPU device of each host", "--num-gpus"),
        ({**JOINED, "backend": "gpu", "devices": on_hosts(2, 1)}, "unequal numbers", "--num-gpus"),
        (
            {**JOINED, "strategy": "mwms:nccl"},
            "--strategy mwms:nccl needs GPUs",
            "use --strategy multi_worker_mirrored",
        ),
        ({"drills": DRILLS[2:], "method": "kuza55"}, "--drill", "leave --drill out"),
        ({"task": "input", "lifecycle": Lifecycle(checkpoints="/kept")}, "--input-only", "--task train"),
        ({"task": "eval"}, "--eval", "--checkpoints"),
        ({"method": "kuza55", "strategy": "mirrored"}, "--method kuza55", "--strategy"),
        ({"model": "resnet20", "data": Data(folder="/d", name="imagenet")}, "imagenet", "--model"),
        ({"lifecycle": Lifecycle(resume=True)}, "--resume", "--checkpoints"),
        ({"data": Data(distortions=True)}, "--distortions", "--data-dir"),
        ({"data": Data(feed="queue")}, "--feed queue", "--data-source python"),
        ({"data": Data(source="python"), "asked": {"prefetch": 3}}, "--prefetch", "--feed queue"),
        ({"data": Data(source="python", feed="queue", prefetch=0)}, "--prefetch 0", "--feed sync"),
        ({**CIFAR, "asked": {"resize_method": "area"}}, "--resize-method", "leave it out"),
        ({**CIFAR, "asked": {"cache": "raw"}}, "--cache", "leave it out"),
        ({**JUDGED, "asked": {"distortions": True}}, "--distortions", "leave it out"),
        ({"runtime": Runtime(memory_limit_mib=1024)}, "--gpu-memory-limit", "--num-intra-threads"),
        ({"exchange": Exchange(repacking=4, small_bytes=64), **REPLICATED}, "--gradient-repacking", "leave"),
        ({"task": "input"}, "--input-only has nothing to measure", "--data-source cpu"),
        ({"strategy": "mirrored"}, "--strategy mirrored has its own exchange", "--variable-update"),
        ({"strategy": "mirrored", **REPLICATED}, "--strategy mirrored", "options of the exchange out"),
        ({"strategy": "central", **COPIES}, "--strategy central", "leave --variable-update"),
        ({"method": "kuza55", "batch_size": (4, 6)}, "--batch-size with a number for each", "one number"),
    ],
)
def test_a_refusal_names_the_option_and_what_works(changes: dict[str, object], what: str, use: str) -> None:
    with pytest.raises(UsageError) as refused:
        check(cpu_spec(**changes))
    assert what in refused.value.what
    assert use in refused.value.hint


FED = Data(source="python")


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        ("optimizer", {"task": "forward"}),
        ("learning_rate", {"task": "eval", "lifecycle": Lifecycle(checkpoints="/kept")}),
        ("gradient_clip", {"task": "input", "data": FED}),
        ("all_reduce", {"task": "forward", **REPLICATED}),
        ("precision", {"task": "input", "data": FED}),
        ("ps", {"task": "input", "data": FED}),
        ("num_warmup_batches", {"task": "eval", "lifecycle": Lifecycle(checkpoints="/kept")}),
        ("ps", {"strategy": "mirrored", **COPIES}),
        ("variable_update", {"strategy": "mirrored:one", **COPIES}),
        ("agg_small_grads_max_group", REPLICATED),
        ("data_name", {"model": "keras:ResNet50"}),
        ("data_format", {"model": "mlp"}),
    ],
)
def test_an_option_that_would_do_nothing_is_refused_where_it_was_typed(
    option: str, changes: dict[str, object]
) -> None:
    assert clash(cpu_spec(**changes)) is None
    with pytest.raises(UsageError) as refused:
        check(cpu_spec(**changes, asked={option: 1}))
    assert refused.value.what.startswith(f"--{option.replace('_', '-')} ")
    assert "leave it out" in refused.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "forward"},
        JUDGED,
        {"task": "input", "data": FED},
        {"method": "kuza55"},
        {"strategy": "central"},
    ],
)
def test_a_drill_is_refused_where_no_step_of_our_own_training_could_do_it(
    changes: dict[str, object],
) -> None:
    assert clash(cpu_spec(**changes)) is None
    found = clash(cpu_spec(**changes, drills=DRILLS[2:]))
    assert found is not None
    assert found.what.startswith("--drill cannot be combined with ")
    assert "--forward-only" not in found.use
    assert found.nearest.drills == ()


@pytest.mark.parametrize(
    ("changes", "last"), [({}, 4), ({"task": "forward"}, 4), (JUDGED, 3), ({**JUDGED, "num_batches": 1}, 0)]
)
def test_a_trace_is_refused_from_the_first_step_on_that_never_comes(
    changes: dict[str, object], last: int
) -> None:
    kept: dict[str, object] = {"num_batches": 4, "lifecycle": Lifecycle(), **changes}

    def traced(*steps: int) -> RunSpec:
        return replaced(cpu_spec(**kept), "lifecycle", trace_steps=steps)

    there = range(1, last + 1)
    assert clash(traced(*there)) is None
    found = clash(traced(*there, last + 1))
    assert found is not None
    assert found.what.startswith("--trace names a step")
    assert found.nearest == traced(*there)


def test_a_central_strategy_has_its_variables_where_ps_puts_them() -> None:
    central = cpu_spec(strategy="central", ps_device="/CPU:1", asked={"ps": "gpu:1"})
    assert clash(central) is None
    assert clash(msgspec.structs.replace(central, strategy="mirrored")) is not None


def test_every_rule_can_apply() -> None:
    """So that none is dead behind another one's words."""
    seen: set[int] = set()

    class AllSeenError(Exception):
        pass

    @settings(max_examples=800, database=None, derandomize=True, phases=(Phase.generate,))
    @given(spec=specs())
    def collect(spec: RunSpec) -> None:
        seen.update(number for number, rule in enumerate(RULES) if rule.when(spec))
        if len(seen) == len(RULES):
            raise AllSeenError

    with contextlib.suppress(AllSeenError):
        collect()
    assert [rule.what for number, rule in enumerate(RULES) if number not in seen] == []


def test_a_spec_is_left_as_it_is() -> None:
    spec = cpu_spec(exchange=Exchange(relaxed=True))
    before = msgspec.json.encode(spec)
    assert clash(spec) is not None
    assert msgspec.json.encode(spec) == before
