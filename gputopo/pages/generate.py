"""Write the pages that follow from the code: `python -m gputopo.pages.generate`. A test compares them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gputopo.values import all_reduce
from gputopo.workload import workloads as workload


def models() -> str:
    """Return the page of the models."""
    rows = [
        (
            f"`{one.name}`",
            _shape(one.input_shape),
            f"{one.parameters:,}",
            f"{one.parameter_bytes / 2**20:.1f}",
            _macs(one.multiply_accumulates),
            f"{one.feature_bytes / 2**20:.1f}",
            str(one.gpu_batch),
        )
        for one in map(workload.require, workload.names())
    ]
    header = ("model", "input", "parameters", "MiB", "multiply-adds", "features MiB", "batch")
    return f"""# models: what --model takes

Besides these: `keras:NAME`, a model of keras.applications, and `module:function`, which returns your own.

{_table(header, rows)}
Parameters: trainable, at 1001 classes for ImageNet and 11 for CIFAR-10 (as tf_cnn_benchmarks), 10 for
`cifar10-cnn` and one output for `mlp` (as their authors). MiB: float32. Multiply-adds and features (outputs
stored for the backward pass): of one example, forward. Batch: per GPU, the default of tf_cnn_benchmarks.
"""


def reductions() -> str:
    """Return the page of the reductions."""
    rows = [(f"`{name}`", meaning) for name, meaning in all_reduce.SAYS.items()]
    return "# reductions: how --all-reduce adds gradients\n\n" + _table(("method", "gradients are"), rows)


GENERATED = {"models": models, "reductions": reductions}


def main() -> None:
    """Write all generated pages."""
    for name, page in GENERATED.items():
        Path(__file__).with_name(f"{name}.md").write_text(page(), encoding="utf-8")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def _shape(shape: tuple[int, int, int]) -> str:
    height, width, channels = shape
    return f"{height}x{width}" if height > 1 else f"{channels} numbers"


def _macs(count: int) -> str:
    return f"{count / 1e9:.3g} G" if count >= 1e8 else f"{count / 1e6:.3g} M"


if __name__ == "__main__":
    main()
