"""A small network twice: for the training core, and in float64 numpy with its gradients by hand.

One 3x3 convolution (stride 1, no padding) with bias and ReLU, one dense layer with bias, softmax
cross-entropy. The numpy form shares no code with the core.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
INPUT_SHAPE = (6, 5, 2)
CLASSES = 7
FILTERS = 3
SHAPES = {
    "conv/kernel": (3, 3, 2, FILTERS),
    "conv/bias": (FILTERS,),
    "dense/kernel": (4 * 3 * FILTERS, CLASSES),
    "dense/bias": (CLASSES,),
}


class SmallModel:
    """The network as the training core takes it."""

    input_shape = INPUT_SHAPE
    classes = CLASSES
    loss: Literal["softmax", "sigmoid"] = "softmax"
    state: Sequence[Any] = ()

    @property
    def variables(self) -> Sequence[Any]:
        from gputopo.launch.models import VariableSpec

        return [VariableSpec(name, shape, 0.3) for name, shape in SHAPES.items()]

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

        from gputopo.launch.models import Forward

        kernel, bias, dense_kernel, dense_bias = (tf.cast(weight, images.dtype) for weight in weights)
        x = tf.nn.conv2d(images, kernel, 1, "VALID", data_format)
        x = tf.nn.relu(tf.nn.bias_add(x, bias, data_format))
        if data_format == "NCHW":
            x = tf.transpose(x, (0, 2, 3, 1))
        x = tf.reshape(x, (rows.batch, -1))
        return Forward(tf.cast(tf.nn.bias_add(tf.matmul(x, dense_kernel), dense_bias), tf.float32), [])


def loss_and_gradients(weights: Sequence[Array], images: Array, labels: Any) -> tuple[float, list[Array]]:
    """Return the mean loss over the batch and the gradients of the four variables."""
    kernel, bias, dense_kernel, dense_bias = weights
    batch = len(images)
    windows = patches(images)  # [b, 4, 3, 18]
    before = windows @ kernel.reshape(-1, FILTERS) + bias  # [b, 4, 3, f]
    features = np.maximum(before, 0.0).reshape(batch, -1)  # [b, 36]
    logits = features @ dense_kernel + dense_bias  # [b, classes]
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = float(-log_p[np.arange(batch), labels].mean())
    of_logits = np.exp(log_p)
    of_logits[np.arange(batch), labels] -= 1.0
    of_logits /= batch
    of_before = (of_logits @ dense_kernel.T).reshape(before.shape) * (before > 0)
    of_kernel = np.einsum("bhwp,bhwf->pf", windows, of_before).reshape(kernel.shape)
    return loss, [of_kernel, of_before.sum(axis=(0, 1, 2)), features.T @ of_logits, of_logits.sum(axis=0)]


def patches(images: Array) -> Array:
    """Return the 3x3 windows of images [b, h, w, c] in the order of a kernel: [b, h - 2, w - 2, 9 c]."""
    batch, height, width, channels = images.shape
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(1, 2))  # [b, h', w', c, 3, 3]
    ordered = windows.transpose(0, 1, 2, 4, 5, 3)  # [b, h', w', 3, 3, c]
    cut: Array = ordered.reshape(batch, height - 2, width - 2, 9 * channels)
    return cut
