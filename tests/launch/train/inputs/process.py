"""Everything that needs TensorFlow, in one process: `python -m tests.launch.train.inputs.process FOLDER`.

FOLDER/NAME.json holds what the case NAME gave; tuned.json, by case, whether the pipelines that TensorFlow ran
were tuned meanwhile; threads.json the threads of Python that were left.
"""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.launch.train.inputs.cases import alone, cifar, damage, feeding, order, pictures
from tests.launch.train.inputs.cases.sources import spec_of

MAX_TOWERS = 3
Case = Callable[[Path], Any]

CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        feeding.ways,
        order.order,
        order.gone_on,
        order.cached,
        order.other_batches,
        damage.damage,
        damage.nothing_good,
        damage.let_go,
        damage.not_opened,
        pictures.pictures,
        pictures.forms,
        cifar.cifar,
        damage.unfit,
        feeding.unused,
        alone.threads_left,
        alone.input_only,
    )
}


def main(folder: str) -> None:
    import tensorflow as tf

    from gputopo.launch.train import set_up_devices

    set_up_devices(spec_of(towers=MAX_TOWERS))
    begin = tf.data.Dataset.__iter__
    tuned: dict[str, list[bool]] = {name: [] for name in CASES}
    threads: dict[str, list[str]] = {}
    for name, case in CASES.items():

        def noted(made: Any, begun: list[bool] = tuned[name]) -> Any:
            begun.append(made.options().autotune.enabled is not False)
            return begin(made)

        place = Path(folder) / name
        place.mkdir()
        with mock.patch.object(tf.data.Dataset, "__iter__", noted):
            (Path(folder) / f"{name}.json").write_text(json.dumps(case(place)))
        threads[name] = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
    (Path(folder) / "tuned.json").write_text(json.dumps(tuned))
    (Path(folder) / "threads.json").write_text(json.dumps(threads))


if __name__ == "__main__":
    main(*sys.argv[1:])
