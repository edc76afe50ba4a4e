"""The models that gputopo trains, as data that needs no TensorFlow: names, shapes, sizes, default batches."""

import difflib

import msgspec

from gputopo.errors import UsageError


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `input_shape`: height, width, channels. `parameters`: trainable, at `classes` classes.

    `gpu_batch` and `cpu_batch` are the default batch sizes per device. The GPU ones are those of
    tf_cnn_benchmarks; the CPU ones keep a step of two devices near a second on two cores.
    """

    name: str
    input_shape: tuple[int, int, int]
    classes: int
    parameters: int
    gpu_batch: int
    cpu_batch: int

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the parameters in float32."""
        return 4 * self.parameters


MODELS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            name="alexnet",
            input_shape=(227, 227, 3),
            classes=1001,
            parameters=61_842_345,
            gpu_batch=512,
            cpu_batch=16,
        ),
        Workload(
            name="trivial",
            input_shape=(227, 227, 3),
            classes=1001,
            parameters=4_263_877,
            gpu_batch=32,
            cpu_batch=32,
        ),
    )
}


def names() -> tuple[str, ...]:
    """Give the names that `--model` takes."""
    return tuple(MODELS)


def require(name: str) -> Workload:
    """Give the workload of that name. Raises UsageError that names the nearest ones."""
    if name in MODELS:
        return MODELS[name]
    near = difflib.get_close_matches(name.lower(), MODELS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the models are: {', '.join(MODELS)}"
    raise UsageError(f"there is no model '{name}'", hint)
