"""What becomes of pictures and labels between the file and the tower."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launch.train.inputs.cases.pictures import EACH, PICTURES
from tests.launch.train.inputs.cases.sources import Picture
from tests.launch.train.inputs.folders import forms

pytestmark = pytest.mark.tensorflow


def test_pictures_of_every_form_are_decoded_alike(given: dict[str, Any]) -> None:
    for form in forms():
        colour = (200, 200, 200) if form.startswith("grey") else (200, 10, 10)
        for use in ("train-bilinear", "train-crop", "eval-bilinear"):
            found = given["forms"][f"{form}-{use}"]
            # CMYK and JPEG keep a flat colour to within four steps of 255.
            expected = pytest.approx([value / 127.5 - 1 for value in colour], abs=4 / 127.5)
            assert found == expected, f"{form}, {use}"


def test_pictures_of_every_resize_method_fill_the_stated_range(folder: Path) -> None:
    for form in PICTURES:
        found = load(folder, *form)
        assert found.shape == (EACH, *Picture().input_shape)
        assert -1 <= found.min() < -0.5, form
        assert 0.5 < found.max() <= 1, form
        assert (found.std((1, 2, 3)) > 0.02).all(), form


def test_resize_methods_differ_and_round_robin_alternates_between_them(folder: Path) -> None:
    mixed, bilinear = load(folder, "round_robin"), load(folder, "bilinear")
    for nearest in mixed[0::4]:
        values = (nearest + 1) * 127.5
        np.testing.assert_allclose(values, values.round(), rtol=0, atol=1e-3, err_msg="stored values")
    np.testing.assert_allclose(mixed[1::4], bilinear[1::4], rtol=0, atol=1e-4)
    for place in (0, 2, 3):
        assert np.abs(mixed[place] - bilinear[place]).max() > 1e-3


def test_training_cuts_other_parts_than_the_middle_and_distorts_colours(folder: Path) -> None:
    plain, distorted = load(folder, "bilinear"), load(folder, "bilinear", True)
    judged = load(folder, "bilinear", True, "eval")
    assert (np.abs(plain - distorted).mean((1, 2, 3)) > 0.01).all()
    assert (np.abs(plain - judged).mean((1, 2, 3)) > 0.02).all()
    assert len({part.tobytes() for part in plain}) == EACH
    np.testing.assert_array_equal(judged, judged[:1].repeat(EACH, axis=0), err_msg="not distorted")


def test_pictures_cached_decoded_are_those_decoded_anew(folder: Path) -> None:
    # Decoding a part of a JPEG may differ from a part of the decoded whole at the part's border.
    cached = load(folder, "bilinear", False, "train", "decoded")
    assert np.abs(cached - load(folder, "bilinear")).mean() < 0.01


def load(
    folder: Path, resize: str, distortions: bool = False, task: str = "train", cache: str | None = None
) -> Any:
    return np.load(folder / "pictures" / f"{resize}-{distortions}-{task}-{cache}.npy")
