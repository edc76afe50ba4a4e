"""GoogLeNet and Inception: C. Szegedy et al., 2014 (v1), 2015 (v3), 2016 (v4)."""

from typing import Generic, TypeVar

from gputopo.workload.layers import PLAIN_NORM, Layers, Norm, Padding

T = TypeVar("T")

Kernel = int | tuple[int, int]


def googlenet(net: Layers[T], x: T, classes: int) -> T:
    """GoogLeNet without auxiliary classifiers and without local response normalisation."""
    with net.block("stem"):
        x = net.max_pool(net.conv(x, 64, 7, 2), 3, 2, "SAME")
        x = net.conv(net.conv(x, 64, 1), 192, 3)
        x = net.max_pool(x, 3, 2, "SAME")
    stages: dict[str, tuple[tuple[int, int, int, int, int, int], ...]] = {
        "3": ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
        "4": (
            (192, 96, 208, 16, 48, 64),
            (160, 112, 224, 24, 64, 64),
            (128, 128, 256, 24, 64, 64),
            (112, 144, 288, 32, 64, 64),
            (256, 160, 320, 32, 128, 128),
        ),
        "5": ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
    }
    for stage, modules in stages.items():
        for letter, widths in zip("abcde", modules, strict=False):
            with net.block(f"inception{stage}{letter}"):
                x = _googlenet_module(net, x, widths)
        if stage != "5":
            with net.block(f"pool{stage}"):
                x = net.max_pool(x, 3, 2, "SAME")
    with net.block("head"):
        x = net.flatten(net.average_pool(x, 7, 1))
        return net.dense(x, classes, activation=None, logits=True)


def _googlenet_module(net: Layers[T], x: T, widths: tuple[int, int, int, int, int, int]) -> T:
    one, before_three, three, before_five, five, pooled = widths
    return net.concat(
        [
            net.conv(x, one, 1),
            net.conv(net.conv(x, before_three, 1), three, 3),
            net.conv(net.conv(x, before_five, 1), five, 5),
            net.conv(net.max_pool(x, 3, 1, "SAME"), pooled, 1),
        ]
    )


class _Normed(Generic[T]):
    """Convolutions of the later Inceptions: each with a norm and a ReLU."""

    def __init__(self, net: Layers[T], norm: Norm = PLAIN_NORM) -> None:
        self.net = net
        self._norm = norm

    def conv(self, x: T, filters: int, kernel: Kernel, stride: int = 1, padding: Padding = "SAME") -> T:
        return self.net.conv(x, filters, kernel, stride, padding=padding, norm=self._norm)

    def chain(self, x: T, *layers: tuple[int, Kernel]) -> T:
        """Convolve again and again: (filters, kernel) each."""
        for filters, kernel in layers:
            x = self.conv(x, filters, kernel)
        return x

    def shrink(self, x: T, filters: int) -> T:
        return self.conv(x, filters, 3, 2, "VALID")


def inception3(net: Layers[T], x: T, classes: int) -> T:
    """Inception v3 without the auxiliary classifier."""
    on = _Normed(net)
    with net.block("stem"):
        x = on.conv(x, 32, 3, 2, "VALID")
        x = on.conv(on.conv(x, 32, 3, 1, "VALID"), 64, 3)
        x = net.max_pool(x, 3, 2)
        x = on.conv(on.conv(x, 80, 1, 1, "VALID"), 192, 3, 1, "VALID")
        x = net.max_pool(x, 3, 2)
    for number, pooled in enumerate((32, 64, 64)):
        with net.block(f"mixed35.{number + 1}"):
            x = _inception3_35(on, x, pooled)
    with net.block("mixed35to17"):
        branch = on.shrink(on.chain(x, (64, 1), (96, 3)), 96)
        x = net.concat([on.shrink(x, 384), branch, net.max_pool(x, 3, 2)])
    for number, narrow in enumerate((128, 160, 160, 192)):
        with net.block(f"mixed17.{number + 1}"):
            x = _inception3_17(on, x, narrow)
    with net.block("mixed17to8"):
        left = on.shrink(on.conv(x, 192, 1), 320)
        right = on.shrink(on.chain(x, (192, 1), (192, (1, 7)), (192, (7, 1))), 192)
        x = net.concat([left, right, net.max_pool(x, 3, 2)])
    for number, largest in enumerate((False, True)):
        with net.block(f"mixed8.{number + 1}"):
            x = _inception3_8(on, x, largest)
    with net.block("head"):
        x = net.flatten(net.average_pool(x, 8, 1))
        return net.dense(x, classes, activation=None, logits=True)


def _inception3_35(on: _Normed[T], x: T, pooled: int) -> T:
    return on.net.concat(
        [
            on.conv(x, 64, 1),
            on.chain(x, (48, 1), (64, 5)),
            on.chain(x, (64, 1), (96, 3), (96, 3)),
            on.conv(on.net.average_pool(x, 3, 1, "SAME"), pooled, 1),
        ]
    )


def _inception3_17(on: _Normed[T], x: T, narrow: int) -> T:
    across, down = (1, 7), (7, 1)
    return on.net.concat(
        [
            on.conv(x, 192, 1),
            on.chain(x, (narrow, 1), (narrow, across), (192, down)),
            on.chain(x, (narrow, 1), (narrow, down), (narrow, across), (narrow, down), (192, across)),
            on.conv(on.net.average_pool(x, 3, 1, "SAME"), 192, 1),
        ]
    )


def _inception3_8(on: _Normed[T], x: T, largest: bool) -> T:
    pool = on.net.max_pool if largest else on.net.average_pool
    parts = [on.conv(x, 320, 1)]
    middle = on.conv(x, 384, 1)
    parts += [on.conv(middle, 384, (1, 3)), on.conv(middle, 384, (3, 1))]
    middle = on.chain(x, (448, 1), (384, 3))
    parts += [on.conv(middle, 384, (1, 3)), on.conv(middle, 384, (3, 1))]
    return on.net.concat([*parts, on.conv(pool(x, 3, 1, "SAME"), 192, 1)])


def inception4(net: Layers[T], x: T, classes: int) -> T:
    """Inception v4."""
    on = _Normed(net)
    with net.block("stem"):
        x = _inception4_stem(on, x)
    for number in range(4):
        with net.block(f"a{number + 1}"):
            x = _inception4_a(on, x)
    with net.block("a_to_b"):
        branch = on.shrink(on.chain(x, (192, 1), (224, 3)), 256)
        x = net.concat([net.max_pool(x, 3, 2), on.shrink(x, 384), branch])
    for number in range(7):
        with net.block(f"b{number + 1}"):
            x = _inception4_b(on, x)
    with net.block("b_to_c"):
        left = on.shrink(on.conv(x, 192, 1), 192)
        right = on.shrink(on.chain(x, (256, 1), (256, (1, 7)), (320, (7, 1))), 320)
        x = net.concat([net.max_pool(x, 3, 2), left, right])
    for number in range(3):
        with net.block(f"c{number + 1}"):
            x = _inception4_c(on, x)
    with net.block("head"):
        x = net.dropout(net.spatial_mean(x), 0.8)
        return net.dense(x, classes, activation=None, logits=True)


def _inception4_stem(on: _Normed[T], x: T) -> T:
    net = on.net
    x = on.conv(x, 32, 3, 2, "VALID")
    x = on.conv(on.conv(x, 32, 3, 1, "VALID"), 64, 3)
    x = net.concat([net.max_pool(x, 3, 2), on.shrink(x, 96)])
    left = on.conv(on.conv(x, 64, 1), 96, 3, 1, "VALID")
    right = on.conv(on.chain(x, (64, 1), (64, (7, 1)), (64, (1, 7))), 96, 3, 1, "VALID")
    x = net.concat([left, right])
    return net.concat([on.shrink(x, 192), net.max_pool(x, 3, 2)])


def _inception4_a(on: _Normed[T], x: T) -> T:
    return on.net.concat(
        [
            on.conv(on.net.average_pool(x, 3, 1, "SAME"), 96, 1),
            on.conv(x, 96, 1),
            on.chain(x, (64, 1), (96, 3)),
            on.chain(x, (64, 1), (96, 3), (96, 3)),
        ]
    )


def _inception4_b(on: _Normed[T], x: T) -> T:
    across, down = (1, 7), (7, 1)
    return on.net.concat(
        [
            on.conv(on.net.average_pool(x, 3, 1, "SAME"), 128, 1),
            on.conv(x, 384, 1),
            on.chain(x, (192, 1), (224, across), (256, down)),
            on.chain(x, (192, 1), (192, across), (224, down), (224, across), (256, down)),
        ]
    )


def _inception4_c(on: _Normed[T], x: T) -> T:
    parts = [on.conv(on.net.average_pool(x, 3, 1, "SAME"), 256, 1), on.conv(x, 256, 1)]
    middle = on.conv(x, 384, 1)
    parts += [on.conv(middle, 256, (1, 3)), on.conv(middle, 256, (3, 1))]
    middle = on.chain(x, (384, 1), (448, (1, 3)), (512, (3, 1)))
    parts += [on.conv(middle, 256, (3, 1)), on.conv(middle, 256, (1, 3))]
    return on.net.concat(parts)
