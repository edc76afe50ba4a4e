"""The options of `gputopo run` by theme, and what they ask for as one value."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gputopo.cli.run.offers import Offer, given
from gputopo.cli.run.options import data, exchange, lifecycle, model, numerics, optimizer, output, runtime

if TYPE_CHECKING:
    from gputopo.launch.spec.prepare import RunOptions
    from gputopo.launch.spec.target import Target

# Headings of the help, in its order.
THEMES: dict[str, tuple[Offer, ...]] = {
    "Model and steps": model.OFFERS,
    "Data": data.OFFERS,
    "Exchange between devices": exchange.OFFERS,
    "Optimizer": optimizer.OFFERS,
    "Precision and layout": numerics.OFFERS,
    "What is kept": lifecycle.OFFERS,
    "Runtime": runtime.OFFERS,
    "Output": output.OFFERS,
}
_TRAINING = tuple(offer for theme, offers in THEMES.items() if theme != "Output" for offer in offers)


def fields_of(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Check all training options, and give the fields of RunOptions. Raises UsageError, InputError."""
    return {
        **model.model_fields(typed),
        **optimizer.rate_fields(typed),
        "data": data.data_of(typed),
        "grad_reduce": exchange.grad_reduce_of(typed),
        "exchange": exchange.exchange_of(typed),
        "optimization": optimizer.optimization_of(typed),
        "precision": numerics.precision_of(typed),
        "data_format": numerics.data_format_of(typed),
        "lifecycle": lifecycle.lifecycle_of(typed),
        "runtime": runtime.runtime_of(typed),
        "asked": asked_of(typed),
    }


def asked_of(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Give the options of plan and training that were typed, by their names, as they were typed."""
    planned = ("num_gpus", "gpus", "exclude", "prefer_pix", "ps", "variable_update")
    placed = {name: typed[name] for name in planned if typed.get(name) not in (None, False, "auto")}
    return {
        **placed,
        **{offer.name.rstrip("_"): _plain(typed[offer.name]) for offer in given(_TRAINING, typed)},
    }


def stray_for_program(typed: Mapping[str, Any]) -> Offer | None:
    """Give the first option that was typed and is for the built-in core only; None if there is none."""
    strays = given((*_TRAINING, *output.OF_THE_CORE), typed)
    return strays[0] if strays else None


def options_of(
    fields: Mapping[str, Any], target: "Target", *, model: str, num_gpus: int | None
) -> "RunOptions":
    """Give what was asked of the run on this target."""
    from gputopo.launch.spec.cpu_plan import CPU_DEVICES
    from gputopo.launch.spec.prepare import RunOptions

    return RunOptions(
        model=model,
        backend=target.backend,
        cpu_devices=CPU_DEVICES if num_gpus is None else num_gpus,
        rehearsal_of=target.rehearsal_of,
        why_cpu=target.why_cpu or "",
        **fields,
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value
