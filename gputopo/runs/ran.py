"""What a run really did, from its spec, in words that can be compared with what was asked. Pure.

A spec in a file is free-form JSON here, of this version or of an older one: what it lacks is left out.
"""

from collections.abc import Mapping
from typing import Any

from gputopo.values.run.all_reduce import MEANINGS

PROGRAM = "program"  # the task of a run of the user's own program
_NOTHING = "nothing: there is one device"


def what_ran(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return by name: trainer, variables, exchange, numbers, data; what the spec lacks is left out.

    The worker refuses what it cannot do as asked, so the spec of a finished run is what ran. `all_reduce_by`
    describes the method: the same name may mean another one on another backend.
    """
    task = spec.get("task")
    if task == PROGRAM:
        return {"task": task, "program": list(spec.get("command") or ())}
    if task == "input":
        return {"task": task, "data": data_words(spec)}
    variables: dict[str, Any] = {}
    if "variable_update" in spec and spec.get("strategy") is None:
        variables = {"variable_update": spec["variable_update"], "variables": _variables(spec)}
    if task in ("forward", "eval"):
        return _only_some({"task": task, **variables, **_numbers(spec), "data": data_words(spec) or None})
    found: dict[str, Any] = {"task": task, "trainer": _trainer(spec), **variables}
    if reduction := spec.get("all_reduce"):
        found["all_reduce"] = reduction
        alone = len(spec.get("devices") or ()) == 1
        found["all_reduce_by"] = _NOTHING if alone else MEANINGS.get(str(reduction).partition("#")[0])
    if reduction or spec.get("strategy") or spec.get("variable_update") == "parameter_server":
        found["grad_reduce"] = spec.get("grad_reduce")
    found["exchange"] = exchange_words(spec) or None
    found |= _numbers(spec)
    if _part(spec, "precision").get("compute") == "fp16":
        precision = _part(spec, "precision")
        found["loss_scale"] = "auto" if precision.get("auto_loss_scale") else precision.get("loss_scale")
    found["optimizer"] = _part(spec, "optimization").get("optimizer")
    found["data"] = data_words(spec) or None
    return _only_some(found)


def exchange_words(spec: Mapping[str, Any]) -> list[str]:
    """Return the options of the exchange that are not the default of its mode."""
    exchange = _part(spec, "exchange")
    words = []
    if exchange.get("staged"):
        words.append("staged, stale by one step")
    if exchange.get("relaxed"):
        words.append("relaxed, gradients of the step before")
    if exchange.get("asynchronous"):
        words.append("asynchronous")
    if chunks := exchange.get("repacking"):
        words.append(f"gradients as {chunks} chunks")
    if (size := exchange.get("small_bytes")) and not _joins_by_default(spec):
        words.append(f"gradients up to {size} bytes joined, {exchange.get('small_group')} at a time")
    if exchange.get("transfer") == "fp16":
        words.append("gradients travel as float16")
    if (groups := exchange.get("groups")) and str(spec.get("all_reduce")) == "hierarchical":
        words.append(f"groups {' | '.join(','.join(map(str, group)) for group in groups)}")
    return words


def _joins_by_default(spec: Mapping[str, Any]) -> bool:
    """Whether small gradients are joined because they travel between hosts (`launch.spec.prepare`)."""
    asked = spec.get("asked") or {}
    return bool(spec.get("servers")) and "agg_small_grads_max_bytes" not in asked


def data_words(spec: Mapping[str, Any]) -> str:
    """Return where examples come from; empty for a spec without data."""
    data = _part(spec, "data")
    if not data:
        return ""
    if data.get("folder"):
        distorted = ", distorted" if data.get("distortions") else ""
        cached = f", cached {_form(data['cache'])}".rstrip() if data.get("cache") else ""
        return f"{data.get('name') or 'examples'} from {data['folder']}{distorted}{cached}{_joint(spec)}"
    made = {"cpu": "made on the CPU", "python": "made in Python"}
    made["gpu"] = "made once" if spec.get("method") else "made once on the device"
    feed = f", {data.get('feed')}" if data.get("source") == "python" else ""
    return f"synthetic, {made.get(str(data.get('source')), 'made')}{feed}{_joint(spec)}"


def _form(cache: object) -> str:
    """Return the form in which records are cached; older specs have only that they are."""
    return str(cache) if isinstance(cache, str) else ""


def _joint(spec: Mapping[str, Any]) -> str:
    """Return where the batch is when a step begins, if that is not on its device."""
    return ", one batch on the host" if spec.get("method") else ""


def _numbers(spec: Mapping[str, Any]) -> dict[str, Any]:
    precision = _part(spec, "precision")
    return {
        "precision": precision.get("compute"),
        "xla": precision.get("xla"),
        "data_format": spec.get("data_format"),
    }


def _only_some(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}


def _trainer(spec: Mapping[str, Any]) -> str | None:
    if spec.get("method"):
        return f"method {spec['method']}"
    if spec.get("strategy"):
        return f"strategy {spec['strategy']}"
    return "own towers" if "variable_update" in spec else None


def _variables(spec: Mapping[str, Any]) -> str:
    if spec["variable_update"] != "parameter_server":
        return "a copy on each device"
    if _part(spec, "exchange").get("ps_spread"):
        return "spread over the devices"
    return str(spec.get("ps_device") or "unknown")


def _part(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = spec.get(name)
    return part if isinstance(part, Mapping) else {}
