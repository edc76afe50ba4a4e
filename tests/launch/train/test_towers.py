"""Hits against a stable sort, and in the odd cases: ties, numbers that are none, rows without an example."""

import json
from typing import Any

import numpy as np
import pytest

from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

ASK = """
import json, sys
from types import SimpleNamespace
import tensorflow as tf
from gputopo.launch.train.towers import hits
found = []
for case in json.loads(sys.argv[1]):
    model = SimpleNamespace(classes=case["classes"])
    logits = tf.constant(case["logits"], tf.float32)
    found.append(hits(model, logits, tf.constant(case["labels"], tf.int64)).numpy().tolist())
json.dump(found, sys.stdout)
"""


def ask(cases: list[dict[str, Any]]) -> list[list[float]]:
    found: list[list[float]] = answer_of("-c", ASK, json.dumps(cases))
    return found


def test_hits_are_those_of_a_sorted_list_of_guesses() -> None:
    random = np.random.default_rng(5)
    cases, expected = [], []
    for classes in (3, 7, 100):
        logits = random.integers(-3, 4, (64, classes)).astype(float)  # few values: many ties
        labels = random.integers(0, classes, 64)
        order = np.argsort(-logits, axis=1, kind="stable")
        place = np.argmax(order == labels[:, None], axis=1)
        cases.append({"classes": classes, "logits": logits.tolist(), "labels": labels.tolist()})
        expected.append([float((place < 1).sum()), float((place < 5).sum())])
    nan, inf = float("nan"), float("inf")
    odd = [
        ([[0.0] * 8, [0.0] * 8], [7, 0], [1, 1]),  # no evidence: right only where the first class is
        ([[nan] * 8, [nan, 1, 0, 0, 0, 0, 0, 0]], [0, 1], [0, 0]),
        ([[inf] * 8, [-inf, inf, 0, 0, 0, 0, 0, 0]], [3, 1], [1, 2]),
        ([[1.0] + [0.0] * 7, [1.0] + [0.0] * 7], [-1, 0], [1, 1]),  # a row without an example
    ]
    for logits_, labels_, wanted in odd:
        cases.append({"classes": 8, "logits": logits_, "labels": labels_})
        expected.append([float(one) for one in wanted])
    cases.append({"classes": 1, "logits": [[2.0], [-2.0], [2.0], [nan]], "labels": [1, 0, 0, 1]})
    expected.append([2.0, 2.0])
    assert ask(cases) == expected
