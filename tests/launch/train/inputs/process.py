"""Everything that needs TensorFlow, in one process: `python -m tests.launch.train.inputs.process FOLDER`.

FOLDER/NAME.json holds what the case NAME gave.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.launch.train.inputs.cases import alone, cifar, damage, feeding, order, pictures
from tests.launch.train.inputs.cases.sources import spec_of

MAX_TOWERS = 3
Case = Callable[[Path], Any]

CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        pictures.colours_and_labels,
        feeding.ways,
        order.order,
        order.gone_on,
        order.cached,
        order.other_batches,
        damage.damage,
        damage.schemas,
        damage.nothing_good,
        damage.let_go,
        damage.not_opened,
        pictures.pictures,
        pictures.forms,
        pictures.without_background,
        cifar.cifar,
        damage.unfit,
        feeding.failing,
        feeding.threads,
        feeding.tuned,
        feeding.marks,
        alone.private_threads,
        alone.input_only,
        alone.gpu_kernels,
    )
}


def main(folder: str, *names: str) -> None:
    from gputopo.launch.train.placement import devices

    devices.set_up(spec_of(towers=MAX_TOWERS))
    for name in names or CASES:
        place = Path(folder) / name
        place.mkdir()
        began = time.perf_counter()
        (Path(folder) / f"{name}.json").write_text(json.dumps(CASES[name](place)))
        print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
