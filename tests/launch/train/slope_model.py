"""A model whose gradients do not depend on its weights, so that any order of updates gives one result.

One weight for each number of an image; the logit is -1e4 + image x weights. There the sigmoid is 0 in
float32, and the gradient of an example with label 1 is exactly minus its image, with label 0 nothing.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

FAR = -1e4


class SlopeModel:
    """The model as the training core takes it."""

    input_shape = (2, 2, 3)
    classes = 1
    loss: Literal["softmax", "sigmoid"] = "sigmoid"
    state: Sequence[Any] = ()

    @property
    def variables(self) -> Sequence[Any]:
        from gputopo.launch.models import VariableSpec

        return [VariableSpec("slope", (12, 1), 0.3)]

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

        return Forward(FAR + tf.matmul(tf.reshape(images, (rows.batch, -1)), weights[0]), [])


def gradient(images: Any, labels: Any) -> Any:
    """Return the gradient [12, 1] of the mean loss, in float64."""
    flat = images.astype(np.float64).reshape(len(images), -1)
    return -(flat * labels[:, None]).mean(axis=0)[:, None]
