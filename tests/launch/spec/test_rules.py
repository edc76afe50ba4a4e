from typing import Any

import pytest
from msgspec.structs import replace

from gputopo.launch.spec import bf16_remark, check, check_layout, remarks
from gputopo.values.errors import UsageError
from gputopo.values.run.events import Device
from gputopo.values.run.spec import Data, Exchange, Lifecycle, Precision, RunSpec, Server
from tests.launch.specs import cpu_spec

SERVERS = tuple(Server(host=f"n{rank}", address=f"10.0.0.{rank}:4000", cores=2) for rank in range(2))


def refusal(spec: RunSpec) -> UsageError | None:
    """Return the refusal of a spec; None where its options go together."""
    try:
        check(spec)
    except UsageError as error:
        return error
    return None


COPIES: dict[str, object] = {"variable_update": "replicated", "ps_device": None}
SHORT = Precision(compute="fp16", loss_scale=128.0, auto_loss_scale=True, xla=True)


def test_a_plain_run_and_one_of_each_kind_are_not_refused() -> None:
    plain = (
        cpu_spec(),
        cpu_spec(exchange=Exchange(asynchronous=True)),
        cpu_spec(variable_update="replicated", ps_device=None, all_reduce="ring"),
        cpu_spec(method="kuza55"),
        cpu_spec(strategy="mirrored", **COPIES),
        cpu_spec(strategy="central"),
        cpu_spec(**JOINED, precision=Precision(deterministic=True)),
        cpu_spec(**{**JOINED, "backend": "gpu", "devices": on_hosts(4, 4), "strategy": "mwms:nccl"}),
        cpu_spec(method="fchollet", precision=SHORT),
        cpu_spec(strategy="mirrored", precision=SHORT, **COPIES),
        cpu_spec(task="input", data=Data(source="python", feed="queue")),
        cpu_spec(servers=SERVERS, **COPIES, all_reduce="hierarchical", precision=Precision(xla=True)),
        cpu_spec(task="eval", lifecycle=Lifecycle(checkpoints="/kept")),
    )
    assert [refusal(spec) for spec in plain] == [None] * len(plain)


JUDGED: dict[str, Any] = {"task": "eval", "lifecycle": Lifecycle(checkpoints="/kept")}
REPLICATED = {**COPIES, "all_reduce": "copy"}


def on_hosts(*counts: int) -> tuple[Device, ...]:
    """Return so many devices on each host."""
    ranks = [rank for rank, count in enumerate(counts) for _ in range(count)]
    return tuple(Device(tower=tower, device=f"/{tower}", rank=rank) for tower, rank in enumerate(ranks))


JOINED = {"strategy": "mwms", **COPIES, "servers": SERVERS, "devices": on_hosts(1, 1)}


def test_a_refusal_names_the_option_and_what_works() -> None:
    """Those that a dry run on one host cannot meet; the others are in tests/cli/run/test_hints.py."""
    cases: list[tuple[dict[str, object], str, str]] = [
        ({**REPLICATED, "all_reduce": "nccl"}, "--all-reduce nccl", "--all-reduce collective"),
        (
            {**REPLICATED, "all_reduce": "nccl_op", "servers": SERVERS},
            "--all-reduce nccl_op works within one process",
            "hierarchical",
        ),
        ({"method": "kuza55", "servers": SERVERS}, "--strategy kuza55 is for one host", "--num-hosts 1"),
        (
            {"servers": SERVERS, "data": Data(folder="/d", bad_records="skip")},
            "--bad-records skip is for one host",
            "--num-hosts 1",
        ),
        ({"strategy": "mirrored", **COPIES, "servers": SERVERS}, "for one host", "multi_worker_mirrored"),
        ({"strategy": "mwms", **COPIES}, "--strategy mwms is for several hosts", "--strategy mirrored"),
        (
            {**JOINED, "backend": "gpu", "devices": on_hosts(2, 1)},
            "the same number of GPUs on each host",
            "--num-gpus",
        ),
        (
            {**JOINED, "strategy": "mwms:nccl"},
            "--strategy mwms:nccl needs GPUs",
            "use --strategy multi_worker_mirrored",
        ),
        (
            {"servers": SERVERS, "precision": Precision(deterministic=True)},
            "--deterministic is for one host",
            "--strategy multi_worker_mirrored",
        ),
        ({"strategy": "mirrored"}, "--strategy mirrored has its own exchange", "--variable-update"),
        ({"model": "resnet20", "data": Data(folder="/d", name="imagenet")}, "imagenet", "--model"),
    ]
    for changes, what, use in cases:
        refused = refusal(cpu_spec(**changes))
        assert refused is not None
        assert what in refused.what
        assert use in refused.hint


def test_an_option_that_would_do_nothing_is_refused_where_it_was_typed() -> None:
    cases: list[tuple[str, dict[str, object]]] = [
        ("optimizer", {"task": "forward"}),
        ("all_reduce", {"task": "forward", **REPLICATED}),
        ("num_warmup_batches", {"task": "eval", "lifecycle": Lifecycle(checkpoints="/kept")}),
        ("ps", {"strategy": "mirrored", **COPIES}),
        ("data_format", {"model": "mlp"}),
    ]
    for option, changes in cases:
        assert refusal(cpu_spec(**changes)) is None
        refused = refusal(cpu_spec(**changes, asked={option: 1}))
        assert refused is not None
        assert refused.what.startswith(f"--{option.replace('_', '-')} ")
        assert "remove it" in refused.hint


@pytest.mark.parametrize(("changes", "last"), [({}, 4), (JUDGED, 3), ({**JUDGED, "num_batches": 1}, 0)])
def test_a_trace_is_refused_from_the_first_step_on_that_never_comes(
    changes: dict[str, object], last: int
) -> None:
    kept: dict[str, Any] = {"num_batches": 4, "lifecycle": Lifecycle(), **changes}

    def traced(*steps: int) -> RunSpec:
        return cpu_spec(**{**kept, "lifecycle": replace(kept["lifecycle"], trace_steps=steps)})

    there = range(1, last + 1)
    assert refusal(traced(*there)) is None
    refused = refusal(traced(*there, last + 1))
    assert refused is not None
    assert refused.what.startswith("--trace uses a step")


def test_a_central_strategy_has_its_variables_where_ps_puts_them() -> None:
    central = cpu_spec(strategy="central", ps_device="/CPU:1", asked={"ps": "gpu:1"})
    assert refusal(central) is None


def test_channels_first_on_the_cpu_without_onednn_is_refused_with_both_alternatives() -> None:
    with pytest.raises(UsageError, match="NCHW needs oneDNN") as refused:
        check_layout(cpu_spec(data_format="NCHW"), {"TF_ENABLE_ONEDNN_OPTS": "0"})
    assert "NHWC" in refused.value.hint
    assert "unset TF_ENABLE_ONEDNN_OPTS" in refused.value.hint


def test_a_result_in_fp16_on_the_cpu_states_that_it_is_emulated_and_no_other_does() -> None:
    (said,) = remarks(cpu_spec(precision=Precision(compute="fp16")))
    assert "emulated" in said
    assert remarks(cpu_spec(precision=Precision(compute="bf16"))) == ()
    assert remarks(cpu_spec(precision=Precision(compute="fp16"), backend="gpu")) == ()


def test_a_cpu_with_instructions_for_bfloat16_is_pointed_out_to_a_run_in_float32() -> None:
    (said,) = bf16_remark(cpu_spec(), {"avx2", "avx512_bf16", "amx_bf16"})
    assert said == "This CPU has AMX: --precision bf16 is usually 1.5 to 2 times as fast here."
    (said,) = bf16_remark(cpu_spec(), {"avx512_bf16"})
    assert said.startswith("This CPU has AVX-512 BF16: ")
    assert bf16_remark(cpu_spec(), {"avx2", "avx512f"}) == ()
    assert bf16_remark(cpu_spec(backend="gpu"), {"amx_bf16"}) == ()
