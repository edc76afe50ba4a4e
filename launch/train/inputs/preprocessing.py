"""Converts stored images to a model's input as tf_cnn_benchmarks does, in current TensorFlow.

Training on ImageNet: a random crop (at least a tenth of the object in it, aspect ratio 3:4 to 4:3, 5 % to all
of the area), stretched to the model's size, flipped left to right half of the time. Distortions also change
brightness, saturation, hue and contrast. Evaluation: resized so that the sides are 1.145 times the model's,
then cropped to the middle. CIFAR-10 with distortions: padded by four pixels of zeros, a random crop, flipped
half of the time; without: unchanged.

All randomness depends only on the seed and on the image's place in the order of the data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gputopo.values.run.spec import ResizeMethod

Tensor = Any
EVAL_SCALE = 1.145  # 256 pixels for a model of 224
NORMALISATION = "float32 from -1 to 1: pixel / 127.5 - 1"
# Streams of random numbers.
_BOX, _FLIP, _WINDOW, _BRIGHTNESS, _SATURATION, _HUE, _CONTRAST, _CIFAR, ORDER = range(10, 19)
_METHODS = (
    tf.image.ResizeMethod.NEAREST_NEIGHBOR,
    tf.image.ResizeMethod.BILINEAR,
    tf.image.ResizeMethod.BICUBIC,
    tf.image.ResizeMethod.AREA,
)
_NAMED = dict(zip(("nearest", "bilinear", "bicubic", "area"), _METHODS, strict=True))
_CIFAR_BORDER = 4
_PHILOX = 1


@dataclass(frozen=True)
class Preprocessing:
    """Settings of the preprocessing. `height` and `width`: size of the model's input."""

    height: int
    width: int
    resize: ResizeMethod
    distortions: bool
    training: bool
    seed: int

    def key(self, purpose: int, place: Tensor) -> Tensor:
        """Return the seed [2] of one random choice, for the image at a place of the order or for an epoch."""
        return tf.stack([tf.constant((self.seed << 8) ^ purpose, tf.int64), tf.cast(place, tf.int64)])


def decode(encoded: Tensor) -> Tensor:
    """Decode a JPEG, a PNG or a single-frame GIF to uint8 [height, width, 3]."""
    return tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_FAST")


def picture(recipe: Preprocessing, encoded: Tensor, boxes: Tensor, place: Tensor) -> Tensor:
    """Convert a JPEG to float32 [height, width, 3], normalised. `boxes`: [n, 4] as ymin, xmin, ymax, xmax.

    Only the needed part of a JPEG is decoded. A PNG (ImageNet has one with a JPEG's name) and a single-frame
    GIF are decoded completely.
    """
    if not recipe.training or recipe.resize == "crop":
        return decoded_picture(recipe, decode(encoded), boxes, place)

    def part_of_jpeg() -> Tensor:
        begin, size = _random_box(recipe, tf.image.extract_jpeg_shape(encoded), boxes, place)
        window = tf.concat([begin[:2], size[:2]], 0)
        return tf.io.decode_and_crop_jpeg(encoded, window, channels=3, dct_method="INTEGER_FAST")

    def part_of_other() -> Tensor:
        pixels = decode(encoded)
        return tf.slice(pixels, *_random_box(recipe, tf.shape(pixels), boxes, place))

    part = tf.cond(tf.io.is_jpeg(encoded), part_of_jpeg, part_of_other)
    part.set_shape((None, None, 3))
    return _finished(recipe, part, place)


def decoded_picture(recipe: Preprocessing, pixels: Tensor, boxes: Tensor, place: Tensor) -> Tensor:
    """Do the same as `picture` for an image that is already decoded, uint8 [height, width, 3]."""
    if not recipe.training:
        return _normalised(_middle(recipe, pixels, place))
    if recipe.resize == "crop":
        large = _at_least(recipe, pixels)
        window = (recipe.height, recipe.width, 3)
        part = tf.image.stateless_random_crop(large, window, recipe.key(_WINDOW, place))
    else:
        begin, size = _random_box(recipe, tf.shape(pixels), boxes, place)
        part = tf.slice(pixels, begin, size)
    return _finished(recipe, part, place)


def cifar_pictures(recipe: Preprocessing, pixels: Tensor, first: Tensor) -> Tensor:
    """Convert uint8 [batch, 32, 32, 3] into float32 [batch, height, width, 3], normalised.

    The images are consecutive in the order of the data, from place `first` on.
    """
    if recipe.training and recipe.distortions:
        pixels = _cifar_distorted(recipe, pixels, first)
    sized = tf.image.resize_with_crop_or_pad(pixels, recipe.height, recipe.width)
    return _normalised(tf.cast(sized, tf.float32))


def _random_box(recipe: Preprocessing, shape: Tensor, boxes: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        boxes[tf.newaxis],  # [1, n, 4]
        seed=recipe.key(_BOX, place),
        min_object_covered=0.1,
        aspect_ratio_range=(0.75, 1.33),
        area_range=(0.05, 1.0),
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    return begin, size


def _finished(recipe: Preprocessing, part: Tensor, place: Tensor) -> Tensor:
    turned = tf.image.stateless_random_flip_left_right(part, recipe.key(_FLIP, place))
    sized = _resized(recipe, turned, recipe.height, recipe.width, place)
    if recipe.distortions:
        sized = 255.0 * _other_colours(recipe, sized / 255.0, place)
    sized.set_shape((recipe.height, recipe.width, 3))
    return _normalised(sized)


def _resized(recipe: Preprocessing, pixels: Tensor, height: Tensor, width: Tensor, place: Tensor) -> Tensor:
    def by(method: str) -> Callable[[], Tensor]:
        return lambda: tf.cast(tf.image.resize(pixels, (height, width), method), tf.float32)

    if recipe.resize == "round_robin":
        chosen = tf.cast(place % len(_METHODS), tf.int32)
        sized = tf.switch_case(chosen, [by(method) for method in _METHODS])
    else:
        sized = by(_NAMED.get(recipe.resize, tf.image.ResizeMethod.BILINEAR))()
    return tf.clip_by_value(sized, 0.0, 255.0)  # bicubic resizing exceeds this range


def _other_colours(recipe: Preprocessing, pixels: Tensor, place: Tensor) -> Tensor:
    """Change the colours of pixels in 0..1. Contrast is changed last for every other image, else second."""
    bright = tf.image.stateless_random_brightness(pixels, 32.0 / 255.0, recipe.key(_BRIGHTNESS, place))

    def contrast(image: Tensor) -> Tensor:
        return tf.image.stateless_random_contrast(image, 0.5, 1.5, recipe.key(_CONTRAST, place))

    def hue(image: Tensor) -> Tensor:
        more = tf.image.stateless_random_saturation(image, 0.5, 1.5, recipe.key(_SATURATION, place))
        return tf.image.stateless_random_hue(more, 0.2, recipe.key(_HUE, place))

    changed = tf.cond(place % 2 == 0, lambda: contrast(hue(bright)), lambda: hue(contrast(bright)))
    return tf.clip_by_value(changed, 0.0, 1.0)


def _middle(recipe: Preprocessing, pixels: Tensor, place: Tensor) -> Tensor:
    if recipe.resize == "crop":
        sized = tf.cast(_at_least(recipe, pixels), tf.float32)
    else:
        sized = _resized(recipe, pixels, *_scaled(recipe, pixels, EVAL_SCALE), place)
    shape = tf.shape(sized)
    top, left = (shape[0] - recipe.height) // 2, (shape[1] - recipe.width) // 2
    middle = tf.slice(sized, [top, left, 0], [recipe.height, recipe.width, 3])
    middle.set_shape((recipe.height, recipe.width, 3))
    return middle


def _at_least(recipe: Preprocessing, pixels: Tensor) -> Tensor:
    """Enlarge an image if it is smaller than the model's input."""
    shape = tf.shape(pixels)
    enough = tf.logical_and(shape[0] >= recipe.height, shape[1] >= recipe.width)
    return tf.cond(
        enough,
        lambda: pixels,
        lambda: tf.cast(tf.image.resize(pixels, _scaled(recipe, pixels, 1.0)), pixels.dtype),
    )


def _scaled(recipe: Preprocessing, pixels: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return the smallest height and width that cover the input times `scale`, in the image's proportions."""
    shape = tf.cast(tf.shape(pixels), tf.float32)
    ratio = scale * tf.maximum(recipe.height / shape[0], recipe.width / shape[1])
    height = tf.maximum(tf.cast(tf.round(shape[0] * ratio), tf.int32), recipe.height)
    width = tf.maximum(tf.cast(tf.round(shape[1] * ratio), tf.int32), recipe.width)
    return height, width


def _cifar_distorted(recipe: Preprocessing, pixels: Tensor, first: Tensor) -> Tensor:
    batch, side = tf.shape(pixels)[0], pixels.shape[1]
    # One Philox counter yields four numbers: image n draws from counter n.
    drawn = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.stack([batch, 4]),
        key=tf.constant([(recipe.seed << 32) ^ _CIFAR], tf.uint64),
        counter=tf.stack([tf.cast(first, tf.uint64), tf.constant(0, tf.uint64)]),
        alg=_PHILOX,
        dtype=tf.uint32,
    )
    numbers = tf.cast(drawn, tf.int64)  # [batch, 4]
    offsets = tf.cast(numbers[:, :2] % (2 * _CIFAR_BORDER + 1), tf.int32)
    border = [[0, 0], [_CIFAR_BORDER, _CIFAR_BORDER], [_CIFAR_BORDER, _CIFAR_BORDER], [0, 0]]
    wide = tf.pad(pixels, border)
    inside = tf.range(side)[tf.newaxis]  # [1, side]
    rows = tf.gather(wide, offsets[:, 0:1] + inside, axis=1, batch_dims=1)
    window = tf.gather(rows, offsets[:, 1:2] + inside, axis=2, batch_dims=1)
    turned = (numbers[:, 2] % 2 == 1)[:, tf.newaxis, tf.newaxis, tf.newaxis]
    return tf.where(turned, tf.reverse(window, [2]), window)


def _normalised(pixels: Tensor) -> Tensor:
    return tf.cast(pixels, tf.float32) / 127.5 - 1.0
