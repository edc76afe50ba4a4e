"""A small network with batch normalisation twice: for the training core, and in float64 numpy by hand.

One 3x3 convolution (stride 1, no padding) without bias, a batch norm with scale, ReLU, one dense layer with
bias, softmax cross-entropy. The numpy form shares no code with the core.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tests.launch.train.small_model import Array, patches

INPUT_SHAPE = (6, 5, 2)
CLASSES = 7
FILTERS = 3
DECAY = 0.9
EPSILON = 1e-3


def shapes_of(classes: int, filters: int) -> dict[str, tuple[int, ...]]:
    return {
        "conv/kernel": (3, 3, 2, filters),
        "conv/beta": (filters,),
        "conv/gamma": (filters,),
        "dense/kernel": (4 * 3 * filters, classes),
        "dense/bias": (classes,),
    }


SHAPES = shapes_of(CLASSES, FILTERS)


class NormedModel:
    """The network as the training core takes it; of `keep` below 1 with dropout, which numpy has not."""

    input_shape = INPUT_SHAPE
    loss: Literal["softmax", "sigmoid"] = "softmax"

    def __init__(self, classes: int = CLASSES, filters: int = FILTERS, keep: float = 1.0) -> None:
        self.classes, self.filters, self.keep = classes, filters, keep

    @property
    def variables(self) -> Sequence[Any]:
        from gputopo.launch.models import VariableSpec

        ones = {"conv/gamma": 1.0}
        return [
            VariableSpec(name, shape, 0.0 if name in ones else 0.3, start=ones.get(name, 0.0))
            for name, shape in shapes_of(self.classes, self.filters).items()
        ]

    @property
    def state(self) -> Sequence[Any]:
        from gputopo.launch.models import VariableSpec

        return [
            VariableSpec("conv/mean", (self.filters,), 0.0),
            VariableSpec("conv/variance", (self.filters,), 0.0, 1.0),
        ]

    def forward(
        self,
        weights: Sequence[Any],
        state: Sequence[Any],
        images: Any,
        rows: Any,
        data_format: str,
        *,
        training: bool = True,
    ) -> Any:
        import tensorflow as tf

        from gputopo.launch.models import Forward, GraphLayers
        from gputopo.workload import Norm

        layers = GraphLayers(iter(weights), iter(state), rows, data_format, training)  # type: ignore[arg-type]
        norm = Norm(decay=DECAY, epsilon=EPSILON, scale=True)
        x = layers.conv(images, self.filters, 3, padding="VALID", norm=norm)
        x = layers.flatten(x)
        x = layers.dropout(x, self.keep) if self.keep < 1.0 else x
        x = layers.dense(x, self.classes, activation=None)
        return Forward(tf.cast(x, tf.float32), layers.new_state)


def loss_and_gradients(
    weights: Sequence[Array], images: Array, labels: Any
) -> tuple[float, list[Array], list[Array]]:
    """Return the mean loss, the gradients of the five variables, and the batch's mean and variance.

    The variance is the unbiased one (n - 1), which is what moves the statistics.
    """
    kernel, beta, gamma, dense_kernel, dense_bias = weights
    batch = len(images)
    windows = patches(images)  # [b, 4, 3, 18]
    before = (windows @ kernel.reshape(-1, FILTERS)).reshape(-1, FILTERS)  # [n, f], n = b x 4 x 3
    count = len(before)
    mean, variance = before.mean(axis=0), before.var(axis=0)
    inverse = 1.0 / np.sqrt(variance + EPSILON)
    normal = (before - mean) * inverse
    scaled = normal * gamma + beta
    features = np.maximum(scaled, 0.0).reshape(batch, -1)  # [b, 36]
    logits = features @ dense_kernel + dense_bias
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = float(-log_p[np.arange(batch), labels].mean())
    of_logits = np.exp(log_p)
    of_logits[np.arange(batch), labels] -= 1.0
    of_logits /= batch
    of_scaled = (of_logits @ dense_kernel.T).reshape(scaled.shape) * (scaled > 0)
    of_gamma, of_beta = (of_scaled * normal).sum(axis=0), of_scaled.sum(axis=0)
    # The mean and the variance depend on every number of the batch.
    of_before = gamma * inverse * (of_scaled - of_beta / count - normal * of_gamma / count)
    of_kernel = windows.reshape(count, -1).T @ of_before
    gradients = [
        of_kernel.reshape(kernel.shape),
        of_beta,
        of_gamma,
        features.T @ of_logits,
        of_logits.sum(axis=0),
    ]
    return loss, gradients, [mean, variance * count / (count - 1)]


def train(
    weights: Sequence[Array],
    towers: Sequence[tuple[Array, Any]],
    *,
    steps: int,
    rate: float,
    momentum: float,
    share: float,
    delay: int = 0,
    weighted: bool = True,
) -> tuple[list[float], list[Array], list[Array]]:
    """Take steps with momentum; return the mean loss before each, the last weights and the moving statistics.

    `towers`: each one's images and labels. `share`: of a tower's gradients in the total; `weighted`: more for
    those with more examples. `delay`: how many
    steps old the gradients are that are applied; before the first come zeros. The statistics are those of the
    first tower.
    """
    weights = [array.astype(np.float64) for array in weights]
    moving = [np.zeros_like(array) for array in weights]
    statistics: list[Array] = [np.zeros(FILTERS), np.ones(FILTERS)]
    waiting: list[list[Array]] = [[np.zeros_like(array) for array in weights]] * delay
    losses = []
    sizes = np.array([len(labels) if weighted else 1 for _, labels in towers])
    parts = sizes / sizes.mean()
    for _ in range(steps):
        ran = [loss_and_gradients(weights, images.astype(np.float64), labels) for images, labels in towers]
        losses.append(float(np.mean(parts * [loss for loss, _, _ in ran])))
        batch = ran[0][2]
        statistics = [old * DECAY + new * (1 - DECAY) for old, new in zip(statistics, batch, strict=True)]
        totals = [
            share * sum(part * gradient for part, gradient in zip(parts, each, strict=True))
            for each in zip(*(gradients for _, gradients, _ in ran), strict=True)
        ]
        waiting = [*waiting, totals]
        applied, waiting = waiting[0], waiting[1:]
        moving = [momentum * old + new for old, new in zip(moving, applied, strict=True)]
        weights = [array - rate * change for array, change in zip(weights, moving, strict=True)]
    return losses, weights, statistics
