"""Rules of the exchange: which placements of variables and transfers of gradients go together. Pure."""

import msgspec

from gputopo.launch.spec.rules.rule import Rule, replaced, to, typed, untyped
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.errors import UsageError
from gputopo.values.run import all_reduce


def _to_server(spec: RunSpec) -> RunSpec:
    on_ps = spec.exchange.ps_spread or spec.ps_device is not None
    place = spec.ps_device if on_ps else "/CPU:0"
    return replaced(spec, variable_update="parameter_server", all_reduce=None, ps_device=place)


def _to_copies(spec: RunSpec) -> RunSpec:
    exchange = msgspec.structs.replace(spec.exchange, ps_spread=False)
    return replaced(spec, variable_update="replicated", ps_device=None, exchange=exchange)


def _of_a_server(spec: RunSpec) -> bool:
    return spec.exchange.staged or spec.exchange.asynchronous


def _of_copies(spec: RunSpec) -> bool:
    exchange = spec.exchange
    packed = exchange.repacking or exchange.small_bytes or exchange.transfer == "fp16"
    return bool(packed or exchange.relaxed)


EXCHANGE_RULES: tuple[Rule, ...] = (
    Rule(
        lambda spec: _of_a_server(spec) and _of_copies(spec),
        "--staged-vars and --async are modes of a parameter server: they cannot be combined with packed or "
        "fp16 gradients, or with relaxed consistency",
        "leave --staged-vars and --async out, and use --variable-update replicated",
        lambda spec: replaced(_to_copies(spec), "exchange", staged=False, asynchronous=False),
    ),
    Rule(
        lambda spec: spec.exchange.staged and spec.variable_update != "parameter_server",
        "--staged-vars cannot be combined with --variable-update {spec.variable_update}: "
        "it stages weights between a parameter server and the towers",
        "use --variable-update parameter_server, or --variable-update replicated and "
        "--variable-consistency relaxed without --staged-vars",
        _to_server,
    ),
    Rule(
        lambda spec: spec.exchange.asynchronous and spec.variable_update != "parameter_server",
        "--async cannot be combined with --variable-update {spec.variable_update}: "
        "towers apply gradients to shared variables, and here each has its own",
        "use --variable-update parameter_server, or --variable-update independent without --async",
        _to_server,
    ),
    Rule(
        lambda spec: spec.exchange.staged and spec.exchange.asynchronous,
        "--staged-vars cannot be combined with --async: --staged-vars needs synchronous steps",
        "leave one of them out, such as --async",
        to("exchange", asynchronous=False),
    ),
    Rule(
        lambda spec: spec.exchange.relaxed and spec.variable_update != "replicated",
        "--variable-consistency relaxed cannot be combined with --variable-update {spec.variable_update}: "
        "it delays reduced gradients by one step",
        "use --variable-update replicated, or --variable-update parameter_server and --staged-vars "
        "without --variable-consistency",
        _to_copies,
    ),
    Rule(
        lambda spec: spec.all_reduce is not None and spec.variable_update != "replicated",
        "--all-reduce {spec.all_reduce} cannot be combined with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated, or leave --all-reduce out",
        to(all_reduce=None),
    ),
    Rule(
        lambda spec: bool(spec.exchange.repacking) and spec.variable_update != "replicated",
        "--gradient-repacking cannot be combined with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated",
        _to_copies,
    ),
    Rule(
        lambda spec: bool(spec.exchange.small_bytes) and spec.variable_update != "replicated",
        "--agg-small-grads-max-bytes cannot be combined with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated",
        _to_copies,
    ),
    Rule(
        lambda spec: spec.exchange.transfer == "fp16" and spec.variable_update != "replicated",
        "--fp16-transfer cannot be combined with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated",
        _to_copies,
    ),
    Rule(
        lambda spec: typed(spec, "agg_small_grads_max_group") and not spec.exchange.small_bytes,
        "--agg-small-grads-max-group needs a size of small gradients",
        "add --agg-small-grads-max-bytes B, or leave it out",
        untyped("agg_small_grads_max_group"),
    ),
    Rule(
        lambda spec: bool(spec.exchange.repacking) and bool(spec.exchange.small_bytes),
        "--gradient-repacking cannot be combined with --agg-small-grads-max-bytes: "
        "it makes chunks of one size, so no small gradient is left",
        "leave --agg-small-grads-max-bytes out",
        to("exchange", small_bytes=0),
    ),
    Rule(
        lambda spec: spec.exchange.ps_spread and spec.variable_update != "parameter_server",
        "--ps gpu:spread cannot be combined with --variable-update {spec.variable_update}: "
        "each device has its own copy",
        "leave --ps out, or use --variable-update parameter_server",
        to("exchange", ps_spread=False),
    ),
    Rule(
        lambda spec: spec.grad_reduce == "sum" and spec.variable_update == "independent",
        "--grad-reduce sum cannot be combined with --variable-update independent: nothing is reduced",
        "leave --grad-reduce out, or use --variable-update replicated",
        to(grad_reduce="mean"),
    ),
)


MAX_CHUNKS = 1024  # each is some ops more for every tower; more is probably a typing mistake


def require_exchange(spec: RunSpec) -> None:
    """Raise UsageError for what cannot be: one line why, and the nearest that works."""
    if spec.variable_update == "parameter_server":
        _require_server(spec)
    else:
        _require_copies(spec)
    if spec.variable_update == "replicated":
        asked = all_reduce.require(spec.all_reduce or "copy", spec.backend, len(spec.devices))
        _require_groups(spec, asked.name)
        _require_packing(spec)
        return
    _refuse_reduction(spec)


def _refuse_reduction(spec: RunSpec) -> None:
    exchange = spec.exchange
    replicated = "use --variable-update replicated"
    for option, given, hint in (
        (f"--all-reduce {spec.all_reduce}", spec.all_reduce is not None, replicated),
        ("relaxed consistency", exchange.relaxed, f"{replicated}, or staged weights"),
        ("gradient repacking", bool(exchange.repacking), replicated),
        ("packing of small gradients", bool(exchange.small_bytes), replicated),
        ("transfer of gradients in fp16", exchange.transfer != "fp32", replicated),
    ):
        if given:
            raise UsageError(
                f"{option} cannot be combined with --variable-update {spec.variable_update}: "
                "nothing is reduced between replicas",
                hint,
            )


def _require_server(spec: RunSpec) -> None:
    exchange = spec.exchange
    if exchange.staged and exchange.asynchronous:
        raise UsageError(
            "staged weights cannot be combined with asynchronous updates: they need synchronous steps",
            "leave one of the two out",
        )
    if exchange.ps_spread and spec.ps_device is not None:
        raise UsageError(
            f"the variables cannot be spread and on {spec.ps_device} at once", "give one of the two places"
        )
    _require_scale(spec)


def _require_copies(spec: RunSpec) -> None:
    exchange = spec.exchange
    server = "use --variable-update parameter_server"
    for option, given, nearest in (
        ("staged weights", exchange.staged, "or relaxed consistency with replicated"),
        ("asynchronous updates", exchange.asynchronous, "or independent, which exchanges nothing"),
        ("a spread of the variables", exchange.ps_spread, "or leave the spread out"),
    ):
        if given:
            raise UsageError(
                f"{option} cannot be combined with --variable-update {spec.variable_update}: "
                "every tower has its own variables",
                f"{server}, {nearest}",
            )
    _require_scale(spec)


def _require_scale(spec: RunSpec) -> None:
    """Raise UsageError for an automatic loss scale with delayed gradients, which have another scale."""
    exchange = spec.exchange
    if not spec.precision.auto_loss_scale:
        return
    for option, given in (
        ("staged weights", exchange.staged),
        ("relaxed consistency", exchange.relaxed),
        ("asynchronous updates", exchange.asynchronous),
    ):
        if given:
            raise UsageError(
                f"an automatic loss scale cannot be combined with {option}: "
                "the gradients that are applied are not those of one step and one scale",
                "give a fixed loss scale",
            )


def _require_groups(spec: RunSpec, name: str) -> None:
    groups = spec.exchange.groups
    if name != "hierarchical" or not groups:
        return
    members = sorted(tower for group in groups for tower in group)
    if members != list(range(len(spec.devices))) or not all(groups):
        raise UsageError(
            f"the groups {list(map(list, groups))} do not have each of the {len(spec.devices)} towers once",
            "name every tower in one group, or leave the groups out",
        )


def _require_packing(spec: RunSpec) -> None:
    exchange = spec.exchange
    for what, number, minimum in (
        ("gradients cannot be repacked into", exchange.repacking, 0),
        ("small gradients cannot have bytes", exchange.small_bytes, 0),
        ("small gradients cannot be joined in groups of", exchange.small_group, 1),
    ):
        if number < minimum:
            raise UsageError(f"{what} {number}", f"give {minimum} or more")
    if exchange.repacking > MAX_CHUNKS:
        raise UsageError(
            f"gradients cannot be repacked into {exchange.repacking} chunks", f"give {MAX_CHUNKS} at most"
        )
