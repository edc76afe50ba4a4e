"""Which published figures of one GPU do not count, and figures of several hosts."""

from collections import Counter
from statistics import median

from gputopo.prediction import Figure, one_gpu_figures
from tests.fits.hosts import SOURCES, published_of_hosts
from tests.fits.one_gpu import left_out, report, used_figures

FIGURES = one_gpu_figures()


def test_the_figures_of_the_roofline_are_the_published_ones_that_count() -> None:
    assert used_figures() == FIGURES


def test_figures_that_contradict_others_do_not_count_and_are_named() -> None:
    """Slower in fp16 than in fp32 with tensor cores; fp32 before TensorFlow had TF32. By rules alone."""
    reasons = left_out()

    assert not reasons.keys() & set(FIGURES)
    assert Counter(why.split()[0] for why in reasons.values()) == {"slower": 2, "fp32": 6}
    assert Figure("A100-SXM4-40GB", "vgg16", 448, "fp16", 70.27) in reasons
    assert "one GPU by its datasheet" in report()


def test_most_published_figures_of_several_hosts_are_near_their_predictions() -> None:
    errors = {
        name: [abs(row.error) for row in published_of_hosts() if row.source == name] for name in SOURCES
    }
    assert (len(errors["tensorflow.org"]), len(errors["piz-daint"])) == (15, 3)
    assert median(errors["tensorflow.org"]) < 0.05
    assert max(errors["tensorflow.org"]) < 0.20
    assert max(errors["piz-daint"]) < 0.06
