"""The runs that test_evaluating looks at, one after the other: the first leaves what the others read."""

from pathlib import Path

from tests.launch.train.lifecycle.life import Fields
from tests.launch.train.trained import USER

ROWS, STEPS = 4, 6
SERVER: Fields = {"variable_update": "parameter_server", "ps_device": "/CPU:0"}


def runs_in(folder: Path) -> list[Fields]:
    """Return all of them, for `life.run_all`."""
    return [*_trained(folder), *_evaluated(folder), *_measured(), *_written(folder)]


def _run(name: str, num_batches: int = 1, **fields: object) -> Fields:
    base = {"batch_size": ROWS, "num_warmup_batches": 0, "learning_rate": 0.1, **SERVER}
    return {"name": name, **base, "num_batches": num_batches, **fields}


def _trained(folder: Path) -> list[Fields]:
    """A run that keeps whatever there is to keep."""
    all_kept = {
        "checkpoints": str(folder / "kept"),
        "export": str(folder / "export"),
        "trace": str(folder / "trace"),
        "trace_steps": [2, 3, 5, 90],
        "tensorboard": str(folder / "board"),
    }
    return [
        _run("train", STEPS, lifecycle=all_kept, optimization={"optimizer": "momentum"}),
    ]


def _evaluated(folder: Path) -> list[Fields]:
    """Evaluations of what `train` saved, and some with nothing to evaluate."""
    kept = {"checkpoints": str(folder / "kept")}
    return [
        _run("eval", 3, task="eval", lifecycle=kept),
        _run("eval_replicated", variable_update="replicated", task="eval", lifecycle=kept),
        _run("eval_other", task="eval", lifecycle=kept, model={"classes": 5}),
        _run("eval_empty", task="eval", lifecycle={"checkpoints": str(folder / "none")}),
    ]


def _measured() -> list[Fields]:
    return [
        _run("forward", 3, task="forward", num_warmup_batches=1),
        _run("steady", 2, num_warmup_batches=3, detect_warmup=True),
        _run("nan", 5, learning_rate=1e30, optimization={"on_nan": "warn"}),
    ]


def _written(folder: Path) -> list[Fields]:
    """Runs that write on a full disk, through a link, and where something is already."""
    (folder / "used").mkdir()
    (folder / "used" / "something").write_text("")
    (folder / "real").mkdir()
    (folder / "link").symlink_to(folder / "real")
    small_disk = 3000  # bytes: enough for the arrays
    keras = f"{USER}:normed"
    return [
        _run("board_full", 2, disk_bytes=0, lifecycle={"tensorboard": str(folder / "full")}),
        _run("export_full", disk_bytes=small_disk, lifecycle={"export": str(folder / "small")}),
        _run("keras", 3, model=keras, lifecycle={"export": str(folder / "keras")}),
        _run(
            "linked", model=keras, precision={"compute": "bf16"}, lifecycle={"export": str(folder / "link")}
        ),
        _run("used", lifecycle={"export": str(folder / "used")}),
    ]
