from typing import Any

import pytest

from gputopo.launch.spec.rules import require_exchange
from gputopo.launch.spec.run_spec import Exchange, Precision, RunSpec
from gputopo.values.errors import UsageError
from gputopo.values.run.events import Device

AUTO_SCALE = Precision(compute="fp16", auto_loss_scale=True)


def spec(update: str, exchange: Exchange | None = None, towers: int = 3, **fields: Any) -> RunSpec:
    return RunSpec(
        model="alexnet",
        devices=tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(towers)),
        backend="cpu",
        batch_size=1,
        variable_update=update,  # type: ignore[arg-type]
        exchange=exchange or Exchange(),
        **fields,
    )


@pytest.mark.parametrize(
    ("asked", "why", "nearest"),
    [
        (spec("replicated", Exchange(staged=True)), "staged weights", "relaxed consistency"),
        (spec("independent", Exchange(asynchronous=True)), "asynchronous updates", "parameter_server"),
        (spec("replicated", Exchange(ps_spread=True)), "a spread of the variables", "parameter_server"),
        (spec("parameter_server", Exchange(relaxed=True)), "relaxed consistency", "or staged weights"),
        (spec("parameter_server", all_reduce="ring"), "--all-reduce ring", "replicated"),
        (spec("independent", Exchange(repacking=2)), "gradient repacking", "replicated"),
        (spec("parameter_server", Exchange(small_bytes=9)), "small gradients", "replicated"),
        (spec("independent", Exchange(transfer="fp16")), "in fp16", "replicated"),
        (
            spec("parameter_server", Exchange(staged=True, asynchronous=True)),
            "cannot be combined with asynchronous",
            "leave one",
        ),
        (
            spec("parameter_server", Exchange(ps_spread=True), ps_device="/CPU:1"),
            "spread and on /CPU:1",
            "one of the two places",
        ),
        (spec("replicated", all_reduce="nccl"), "NCCL reduces between GPUs only", "use collective"),
        (spec("replicated", all_reduce="tf_hierarchical"), "loses the gradients", "use hierarchical"),
        (spec("replicated", all_reduce="psgpu#4"), "adds on 4 devices, there are 3", "use psgpu#3"),
        (
            spec("replicated", Exchange(groups=((0, 1),)), all_reduce="hierarchical"),
            "do not have each of the 3 towers once",
            "every tower in one group",
        ),
        (
            spec("replicated", Exchange(groups=((0, 1), (1, 2))), all_reduce="hierarchical"),
            "do not have each",
            "every tower in one group",
        ),
        (spec("replicated", Exchange(repacking=-1)), "repacked into -1", "0 or more"),
        (spec("replicated", Exchange(repacking=1025)), "repacked into 1025", "1024 at most"),
        (spec("replicated", Exchange(small_group=0)), "in groups of 0", "1 or more"),
        (
            spec("parameter_server", Exchange(staged=True), precision=AUTO_SCALE),
            "automatic loss scale cannot be combined with staged",
            "fixed loss scale",
        ),
        (
            spec("replicated", Exchange(relaxed=True), precision=AUTO_SCALE),
            "automatic loss scale cannot be combined with relaxed",
            "fixed loss scale",
        ),
        (
            spec("parameter_server", Exchange(asynchronous=True), precision=AUTO_SCALE),
            "automatic loss scale cannot be combined with asynchronous",
            "fixed loss scale",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason_and_what_works(
    asked: RunSpec, why: str, nearest: str
) -> None:
    with pytest.raises(UsageError) as refused:
        require_exchange(asked)
    assert why in refused.value.what
    assert nearest in refused.value.hint


@pytest.mark.parametrize(
    "asked",
    [
        spec("parameter_server"),
        spec("parameter_server", ps_device="/CPU:2"),
        spec("parameter_server", Exchange(ps_spread=True, staged=True)),
        spec("parameter_server", Exchange(asynchronous=True)),
        spec("independent"),
        spec("independent", precision=AUTO_SCALE),
        spec("replicated"),
        spec("replicated", Exchange(relaxed=True, repacking=4, transfer="fp16"), all_reduce="ring#2"),
        spec("replicated", Exchange(groups=((2,), (0, 1))), all_reduce="hierarchical"),
        spec("replicated", Exchange(groups=((7,),)), all_reduce="copy"),  # nobody asks for them
        spec("replicated", Exchange(repacking=1024)),
        spec("replicated", precision=AUTO_SCALE),
    ],
)
def test_what_goes_together_passes(asked: RunSpec) -> None:
    assert refused(asked) is None


def refused(asked: RunSpec) -> str | None:
    """Return why a spec is refused; None where it is not."""
    try:
        require_exchange(asked)
    except UsageError as error:
        return error.what
    return None
