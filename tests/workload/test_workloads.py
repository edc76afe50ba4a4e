"""The networks by what was published of them: parameters, feature memory, multiply-accumulates."""

import pytest

from gputopo.workload import Norm, Padding, Sketch, known_architectures, require_workload

# Trainable numbers, and those of moving statistics as well, as tf_cnn_benchmarks builds the networks
# (1001 and 11 classes); the last two as the Keras examples have them.
PARAMETERS = {
    "trivial": (4_263_877, 4_263_877),
    "lenet": (2_173_353, 2_173_353),
    "alexnet": (61_842_345, 61_842_345),
    "overfeat": (145_924_969, 145_924_969),
    "googlenet": (6_999_577, 6_999_577),
    "vgg11": (132_867_433, 132_867_433),
    "vgg16": (138_361_641, 138_361_641),
    "vgg19": (143_671_337, 143_671_337),
    "inception3": (23_819_401, 23_853_833),
    "inception4": (42_649_769, 42_712_937),
    "resnet50": (25_559_081, 25_612_201),
    "resnet50_v1.5": (25_559_081, 25_612_201),
    "resnet50_v2": (25_536_361, 25_581_929),
    "resnet101": (44_551_209, 44_656_553),
    "resnet101_v1.5": (44_551_209, 44_656_553),
    "resnet101_v2": (44_511_081, 44_608_873),
    "resnet152": (60_194_857, 60_346_281),
    "resnet152_v1.5": (60_194_857, 60_346_281),
    "resnet152_v2": (60_139_369, 60_283_241),
    "alexnet-cifar10": (1_756_619, 1_756_619),
    "trivial-cifar10": (56_332, 56_332),
    "resnet20": (269_787, 271_163),
    "resnet20_v2": (269_467, 270_875),
    "resnet32": (464_219, 466_491),
    "resnet32_v2": (463_675, 465_979),
    "resnet44": (658_651, 661_819),
    "resnet44_v2": (657_883, 661_083),
    "resnet56": (853_083, 857_147),
    "resnet56_v2": (852_091, 856_187),
    "resnet110": (1_728_027, 1_736_123),
    "resnet110_v2": (1_726_027, 1_734_155),
    "densenet40_k12": (357_491, 364_771),
    "densenet100_k12": (2_217_411, 2_259_651),
    "densenet100_k24": (8_659_995, 8_743_419),
    "cifar10-cnn": (1_250_858, 1_250_858),
    "mlp": (41_157_101, 41_157_101),
}


def test_parameters_are_exactly_the_published_ones() -> None:
    for name in known_architectures():
        drawn = known_architectures()[name].sketch().variables
        trained = sum(one.size for one in drawn if one.trainable)
        assert (trained, sum(one.size for one in drawn)) == PARAMETERS[name]


def test_every_network_is_checked() -> None:
    assert set(known_architectures()) == set(PARAMETERS)


# From the static table of a CPU benchmark of tf_cnn_benchmarks (103, 155, 219, 89 and 63 MB), which took it
# from convnet-burden: MiB of features (convolutions, norms, pools, dense layers, sums and concatenations;
# ReLU in place) and 10^9 multiply-accumulates per image, at 1000 classes. Of inception3 the table counts the
# four inner concatenations of its last two blocks too, which tf_cnn_benchmarks does not make.
def test_features_and_products_are_those_of_the_published_table() -> None:
    for name, feature_mib, giga_products in [
        ("resnet50", 102.6, 3.86),
        ("resnet101", 154.7, 7.57),
        ("resnet152", 219.0, 11.28),
        ("inception3", 89.0 - 4 * 4 * 8 * 8 * 768 / 2**20, 5.71),
        ("vgg19", 62.5, 19.63),
    ]:
        load = require_workload(name)
        assert load.feature_bytes / 2**20 == pytest.approx(feature_mib, abs=0.05)
        assert load.multiply_accumulates / 1e9 == pytest.approx(giga_products, abs=0.005)


def test_blocks_add_up_to_the_whole() -> None:
    for name in known_architectures():
        load = require_workload(name)
        assert sum(block.parameters for block in load.blocks) == load.parameters, name
        names = [block.name for block in load.blocks]
        assert len(set(names)) == len(names), name


def test_windows_are_counted_by_padding_and_stride() -> None:
    cases: list[tuple[Padding, int, int]] = [
        ("SAME", 2, 4),
        ("VALID", 2, 3),
        ("SYMMETRIC", 2, 4),
        ("SAME", 1, 7),
        ("VALID", 1, 5),
    ]
    for padding, stride, expected in cases:
        net = Sketch()
        assert net.conv((7, 7, 2), 5, 3, stride, padding=padding) == (expected, expected, 5)
        assert net.blocks[0].multiply_accumulates == expected**2 * 5 * 9 * 2


def test_a_window_that_is_larger_than_the_image_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Sketch().max_pool((2, 2, 1), 3, 1)


def test_shapes_that_differ_are_neither_added_nor_joined() -> None:
    net = Sketch()
    with pytest.raises(ValueError, match="added"):
        net.add((4, 4, 2), (4, 4, 3))
    with pytest.raises(ValueError, match="side by side"):
        net.concat([(4, 4, 2), (2, 4, 2)])


def test_a_norm_brings_moving_statistics_and_takes_the_bias_away() -> None:
    net = Sketch()
    net.conv((8, 8, 3), 4, 3, norm=Norm(scale=True))
    net.conv((8, 8, 3), 4, 3, norm=Norm())
    net.conv((8, 8, 3), 4, 3, bias=False)
    roles = [one.role for one in net.variables]
    statistics = ["moving_mean", "moving_variance"]
    assert roles == ["kernel", "beta", "gamma", *statistics, "kernel", "beta", *statistics, "kernel"]
