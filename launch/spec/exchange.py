"""Which ways of exchanging weights and gradients go together. Pure; said before anything starts."""

from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values import all_reduce
from gputopo.values.errors import UsageError

MOST_PIECES = 1024  # each is some ops more for every tower; beyond this a typing mistake is likelier


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
                f"{option} does not go with --variable-update {spec.variable_update}: nothing is reduced "
                "between replicas",
                hint,
            )


def _require_server(spec: RunSpec) -> None:
    exchange = spec.exchange
    if exchange.staged and exchange.asynchronous:
        raise UsageError(
            "staged weights do not go with asynchronous updates: one step of delay needs steps",
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
                f"{option} does not go with --variable-update {spec.variable_update}: "
                "every tower has its own variables",
                f"{server}, {nearest}",
            )
    _require_scale(spec)


def _require_scale(spec: RunSpec) -> None:
    """An automatic loss scale judges the gradients that it scaled: it cannot judge others."""
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
                f"an automatic loss scale does not go with {option}: "
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
            f"the groups {list(map(list, groups))} do not hold each of the {len(spec.devices)} towers once",
            "name every tower in one group, or leave the groups to gputopo",
        )


def _require_packing(spec: RunSpec) -> None:
    exchange = spec.exchange
    for what, number, least in (
        ("gradients cannot be repacked into", exchange.repacking, 0),
        ("small gradients cannot have bytes", exchange.small_bytes, 0),
        ("small gradients cannot be joined in groups of", exchange.small_group, 1),
    ):
        if number < least:
            raise UsageError(f"{what} {number}", f"give {least} or more")
    if exchange.repacking > MOST_PIECES:
        raise UsageError(
            f"gradients cannot be repacked into {exchange.repacking} pieces", f"give {MOST_PIECES} at most"
        )
