"""The type to compute in, its loss scale, XLA, and the layout of images."""

from collections.abc import Mapping
from typing import Any, get_args

from gputopo.cli.choices import require_choice, shown
from gputopo.cli.run.offers import Offer, number
from gputopo.launch.spec.run_spec import DataFormat, Precision, PrecisionName
from gputopo.values.errors import UsageError

PRECISIONS: tuple[PrecisionName, ...] = get_args(PrecisionName)
DATA_FORMATS: tuple[DataFormat, ...] = get_args(DataFormat)
# The default of tf_cnn_benchmarks' models for --fp16_loss_scale.
FP16_LOSS_SCALE = 128.0
AUTO = "auto"

PRECISION = Offer("--precision", str, "|".join(PRECISIONS), "Compute in. Variables stay fp32.")
LOSS_SCALE = Offer(
    "--loss-scale", str, "X|auto", f"Of fp16; auto adapts it. Default with fp16: {FP16_LOSS_SCALE:g}."
)
XLA = Offer("--xla", bool, None, "Compile each tower with XLA.")
DATA_FORMAT = Offer("--data-format", str, "|".join(DATA_FORMATS), "Default: NCHW on GPUs, NHWC on the CPU.")

OFFERS = (PRECISION, LOSS_SCALE, XLA, DATA_FORMAT)


def precision_of(typed: Mapping[str, Any]) -> Precision:
    """Check the options of this theme and give the precision. Raises UsageError."""
    asked = typed["precision"]
    compute = require_choice("--precision", "fp32" if asked is None else asked, PRECISIONS)
    scale = typed["loss_scale"]
    if scale is None:
        default = FP16_LOSS_SCALE if compute == "fp16" else Precision().loss_scale
        return Precision(compute=compute, loss_scale=default, xla=typed["xla"])
    return Precision(
        compute=compute,
        loss_scale=FP16_LOSS_SCALE if scale == AUTO else _scale(scale),
        auto_loss_scale=scale == AUTO,
        xla=typed["xla"],
    )


def data_format_of(typed: Mapping[str, Any]) -> DataFormat | None:
    """Give the layout, None for the backend's own. Raises UsageError."""
    asked = typed["data_format"]
    return None if asked is None else require_choice("--data-format", asked.upper(), DATA_FORMATS)


def _scale(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError(
            f"--loss-scale cannot be {shown(text)}", "give a number such as 128, or auto"
        ) from None
    scale = number(LOSS_SCALE, value, above=True)
    assert scale is not None
    return scale
