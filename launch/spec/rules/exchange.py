"""Rules of the exchange: which ways to hold variables and to move gradients go together. Pure."""

import msgspec

from gputopo.launch.spec.rules.rule import Rule, replaced, to, typed, untyped
from gputopo.launch.spec.run_spec import RunSpec


def _to_server(spec: RunSpec) -> RunSpec:
    held = spec.exchange.ps_spread or spec.ps_device is not None
    place = spec.ps_device if held else "/CPU:0"
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
        "--staged-vars and --async are ways of a parameter server: they do not go with packed or shortened "
        "gradients, or with relaxed consistency",
        "leave --staged-vars and --async out, and use --variable-update replicated",
        lambda spec: replaced(_to_copies(spec), "exchange", staged=False, asynchronous=False),
    ),
    Rule(
        lambda spec: spec.exchange.staged and spec.variable_update != "parameter_server",
        "--staged-vars does not go with --variable-update {spec.variable_update}: "
        "it stages the weights on their way from a parameter server",
        "use --variable-update parameter_server, or --variable-update replicated and "
        "--variable-consistency relaxed without --staged-vars",
        _to_server,
    ),
    Rule(
        lambda spec: spec.exchange.asynchronous and spec.variable_update != "parameter_server",
        "--async does not go with --variable-update {spec.variable_update}: "
        "each tower applies its gradients to common variables, and here it has its own",
        "use --variable-update parameter_server, or --variable-update independent without --async",
        _to_server,
    ),
    Rule(
        lambda spec: spec.exchange.staged and spec.exchange.asynchronous,
        "--staged-vars does not go with --async: what is stale by one step needs common steps",
        "leave one of them out, such as --async",
        to("exchange", asynchronous=False),
    ),
    Rule(
        lambda spec: spec.exchange.relaxed and spec.variable_update != "replicated",
        "--variable-consistency relaxed does not go with --variable-update {spec.variable_update}: "
        "it is the reduced gradients that come one step later",
        "use --variable-update replicated, or --variable-update parameter_server and --staged-vars "
        "without --variable-consistency",
        _to_copies,
    ),
    Rule(
        lambda spec: spec.all_reduce is not None and spec.variable_update != "replicated",
        "--all-reduce {spec.all_reduce} does not go with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated, or leave --all-reduce out",
        to(all_reduce=None),
    ),
    Rule(
        lambda spec: bool(spec.exchange.repacking) and spec.variable_update != "replicated",
        "--gradient-repacking does not go with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated",
        _to_copies,
    ),
    Rule(
        lambda spec: bool(spec.exchange.small_bytes) and spec.variable_update != "replicated",
        "--agg-small-grads-max-bytes does not go with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated",
        _to_copies,
    ),
    Rule(
        lambda spec: spec.exchange.transfer == "fp16" and spec.variable_update != "replicated",
        "--fp16-transfer does not go with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated",
        _to_copies,
    ),
    Rule(
        lambda spec: typed(spec, "agg_small_grads_max_group") and not spec.exchange.small_bytes,
        "--agg-small-grads-max-group says how many small gradients go together, and none are small: "
        "no size is named",
        "add --agg-small-grads-max-bytes B, or leave it out",
        untyped("agg_small_grads_max_group"),
    ),
    Rule(
        lambda spec: bool(spec.exchange.repacking) and bool(spec.exchange.small_bytes),
        "--gradient-repacking does not go with --agg-small-grads-max-bytes: "
        "it makes pieces of one size, so no small gradient is left",
        "leave --agg-small-grads-max-bytes out",
        to("exchange", small_bytes=0),
    ),
    Rule(
        lambda spec: spec.exchange.ps_spread and spec.variable_update != "parameter_server",
        "--ps gpu:spread does not go with --variable-update {spec.variable_update}: "
        "every device has its own copy",
        "leave --ps out, or use --variable-update parameter_server",
        to("exchange", ps_spread=False),
    ),
    Rule(
        lambda spec: spec.grad_reduce == "sum" and spec.variable_update == "independent",
        "--grad-reduce sum does not go with --variable-update independent: nothing is reduced",
        "leave --grad-reduce out, or use --variable-update replicated",
        to(grad_reduce="mean"),
    ),
)
