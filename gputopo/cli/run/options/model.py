"""What is run, and for how long: the model, the task, batches and steps."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gputopo.cli.choices import require_choice, shown
from gputopo.cli.run.offers import Offer, at_least, whole
from gputopo.values.errors import UsageError

TASKS = ("train", "forward", "eval", "input")
METHODS = ("kuza55", "avolkov1", "fchollet")
DATA_NAMES = ("imagenet", "cifar10")
AUTO = "auto"

TASK = Offer("--task", str, "|".join(TASKS), "Train, forward passes only, judge a checkpoint, input only.")
FORWARD_ONLY = Offer("--forward-only", bool, None, "The same as --task forward.")
EVAL = Offer("--eval", bool, None, "The same as --task eval: needs --checkpoints.")
INPUT_ONLY = Offer("--input-only", bool, None, "The same as --task input: measure the input pipeline alone.")
DATA_NAME = Offer(
    "--data-name", str, "|".join(DATA_NAMES), "The examples' shape. Default: the model's; alexnet has both."
)
METHOD = Offer("--method", str, "|".join(METHODS), "Train as that Keras program for several GPUs did.")
STRATEGY = Offer(
    "--strategy",
    str,
    "NAME",
    "Train by tf.distribute, to compare: mirrored[:nccl|hierarchical|one], central, one-device.",
)
BATCH_SIZE = Offer("--batch-size", int, "N", "Images per device and step. Default: by the model.")
NUM_BATCHES = Offer(
    "--num-batches",
    int,
    "N",
    "Counted steps. Default: 100; on CPU devices by the clock; --eval of --data-dir: all.",
)
NUM_WARMUP_BATCHES = Offer(
    "--num-warmup-batches",
    str,
    "N|auto",
    "Steps before; auto: until the step times are steady. Default: 10; on CPU devices 3.",
)
SEED = Offer("--seed", int, "N", "Of the weights and the images.")
ADD_WORK = Offer(
    "--add-work",
    list[str],
    "TOWER:PASSES",
    "Slow a tower down by that many forward passes a step, to try the anomaly report. Repeatable.",
)

OFFERS = (
    TASK,
    FORWARD_ONLY,
    EVAL,
    INPUT_ONLY,
    DATA_NAME,
    METHOD,
    STRATEGY,
    BATCH_SIZE,
    NUM_BATCHES,
    NUM_WARMUP_BATCHES,
    SEED,
    ADD_WORK,
)
_TASK_FLAGS = {FORWARD_ONLY: "forward", EVAL: "eval", INPUT_ONLY: "input"}


def model_fields(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options of this theme and give the fields of RunOptions. Raises UsageError."""
    method, data_name = typed["method"], typed["data_name"]
    return {
        "task": task_of(typed),
        "data_name": None if data_name is None else require_choice("--data-name", data_name, DATA_NAMES),
        "method": None if method is None else require_choice("--method", method, METHODS),
        "strategy": typed["strategy"],
        "batch_size": at_least(1, BATCH_SIZE, typed["batch_size"]),
        "num_batches": at_least(1, NUM_BATCHES, typed["num_batches"]),
        **_warmup(typed["num_warmup_batches"]),
        "seed": at_least(0, SEED, typed["seed"]),
        "add_work": parse_add_work(typed["add_work"] or ()),
    }


def task_of(typed: Mapping[str, Any]) -> str:
    """Give the task of `--task` and its short forms. Raises UsageError for two that differ."""
    asked = {offer.option: task for offer, task in _TASK_FLAGS.items() if typed[offer.name]}
    if typed["task"] is not None:
        asked["--task"] = require_choice("--task", typed["task"], TASKS)
    tasks = set(asked.values())
    if len(tasks) > 1:
        first, second = list(asked)[:2]
        raise UsageError(f"{first} and {second} ask for two tasks", f"leave one of them out: {second}")
    return tasks.pop() if tasks else "train"


def parse_add_work(words: Sequence[str]) -> dict[int, int]:
    """Read `1:2` as two passes more for tower 1. Raises UsageError, also for a tower that is named twice."""
    added: dict[int, int] = {}
    for word in words:
        found = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4})", word.strip())
        if found is None or int(found[2]) == 0:
            raise UsageError(
                f"--add-work cannot be {shown(word)}", "give a tower and a count of passes, such as 1:2"
            )
        tower = int(found[1])
        if tower in added:
            raise UsageError(f"--add-work names tower {tower} twice", "name every tower once")
        added[tower] = int(found[2])
    return added


def _warmup(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    if text == AUTO:
        return {"detect_warmup": True}
    if re.fullmatch(r"-[0-9]{1,9}", text):
        raise UsageError(f"--num-warmup-batches cannot be {text}", "give 0 or more, or auto")
    return {"num_warmup_batches": whole(NUM_WARMUP_BATCHES, text, 0, AUTO)}
