"""Output of Keras `fit` and of Horovod's synthetic benchmarks."""

import pytest

from gputopo.values.run.measurement import Measurement
from tests.captures.samples import runs_in

BAR = "\x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m"


def last_line(steps: int, seconds: int, step_ms: int) -> str:
    """The last progress line of Keras 3."""
    return f"\x1b[1m{steps}/{steps}\x1b[0m {BAR} \x1b[1m{seconds}s\x1b[0m {step_ms}ms/step - loss: 2.3\n"


KERAS_3 = (
    f"batch_size=64\nEpoch 1/3\n\r\x1b[1m  1/100\x1b[0m {BAR} \x1b[1m9:01\x1b[0m 5s/step\b\b\r"
    f"{last_line(100, 31, 250)}Epoch 2/3\n{last_line(100, 20, 200)}Epoch 3/3\n{last_line(100, 20, 200)}"
    f"{last_line(10, 1, 100)}"
)
KERAS_2 = """Batch size: 128
Number of devices: 4
Model: "resnet50"
Epoch 1/2
390/390 [==============================] - 26s 68ms/step - loss: 1.3148 - acc: 0.5271 - val_loss: 1.0046
Epoch 2/2
  1/390 [..............................] - ETA: 23s - loss: 0.9
390/390 [==============================] - 23s 64ms/step - loss: 0.9076 - acc: 0.6776 - val_loss: 0.8965
"""
IN_LINES = """batch_size: 64
Epoch 1/1
100/100 - 20s - loss: 2.3 - 20s/epoch - 200ms/step
"""
OF_SAMPLES = """Train on 60000 samples, validate on 10000 samples
Epoch 1/1
60000/60000 [==============================] - 7s 125us/step - loss: 0.3 - val_loss: 0.1
"""
TRACKED = """Epoch 1/2
50000/50000 [==============================] - 40s - loss: 2.3026
Samples/sec: 1240.50
Epoch 2/2
50000/50000 [==============================] - 38s - loss: 2.3026
Samples/sec: 1302.25
"""
HOROVOD = """Model: ResNet50
Batch size: 32
Number of GPUs: 4
Running warmup...
Running benchmark...
Iter #0: 300.0 img/sec per GPU
Iter #1: 302.0 img/sec per GPU
Iter #2: 301.0 img/sec per GPU
Iter #3: 301.0 img/sec per GPU
Img/sec per GPU: 301.0 +-1.4
Total img/sec on 4 GPU(s): 1204.0 +-5.5
"""


def the_run(text: str) -> Measurement:
    (run,) = runs_in(text)
    return run


@pytest.mark.parametrize(
    ("text", "images_per_sec", "steps", "devices", "batch"),
    [
        (KERAS_3, 64 / 0.2, 200, 1, 64),
        (KERAS_2, 128 / 0.064, 390, 4, 32),
        (IN_LINES, 64 / 0.2, 100, 1, 64),
        (OF_SAMPLES, 8000, None, 1, None),
        (TRACKED, 1302.25, 50000, 1, None),
    ],
)
def test_keras_has_the_speed_of_its_later_epochs_and_what_it_states(
    text: str, images_per_sec: float, steps: int | None, devices: int, batch: int | None
) -> None:
    run = the_run(text)
    assert run.images_per_sec == pytest.approx(images_per_sec)
    assert (run.steps, run.n_gpus, run.batch_per_gpu) == (steps, devices, batch)
    assert run.framework == "keras"
    assert run.gpu is None


def test_few_digits_are_a_large_uncertainty() -> None:
    run = the_run(IN_LINES.replace("200ms", "2ms").replace("20s", "1s"))
    assert run.uncertainty is not None
    assert run.images_per_sec is not None
    assert run.uncertainty / run.images_per_sec == pytest.approx(0.25 / 3**0.5)


def test_without_a_batch_there_are_steps_and_no_images_per_sec() -> None:
    run = the_run(KERAS_2.replace("Batch size: 128\n", ""))
    assert (run.images_per_sec, run.steps, run.batch_per_gpu) == (None, 390, None)
    assert run.reason == "64 ms a step, but the log has no batch size"


def test_horovod_has_its_total_and_the_standard_error_of_its_iterations() -> None:
    run = the_run(HOROVOD)
    assert (run.images_per_sec, run.n_gpus, run.batch_per_gpu) == (1204.0, 4, 32)
    assert (run.model, run.framework, run.backend, run.data) == ("resnet50", "horovod", "gpu", "synthetic")
    assert run.uncertainty == pytest.approx(5.5 / 1.96 / 2)
    cut = the_run(HOROVOD[: HOROVOD.index("Img/sec per GPU")])
    assert (cut.images_per_sec, cut.reason, cut.n_gpus) == (None, "the log ends before its total", 4)
