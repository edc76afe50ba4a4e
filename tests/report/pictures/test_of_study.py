"""A report's pictures: beside their tables, of runs that were killed too, with names that differ."""

import re
from pathlib import Path
from typing import Any

import pytest

from gputopo.captures import read_bundled
from gputopo.measurements import RunFolders, published_study, study_of
from gputopo.report import Document, document_html, study_document
from gputopo.report.document import Picture
from gputopo.values import schema
from gputopo.values.run.events import (
    Device,
    Event,
    GpuSample,
    RunFinished,
    RunStarted,
    Sample,
    Step,
    TowerMarks,
    encode_line,
)
from gputopo.values.run.measurement import Measurement
from gputopo.values.study import Study

MACHINE = read_bundled("7gforce")


def study() -> Study:
    """A job on one, two and four GPUs."""
    speeds = {1: 100.0, 2: 190.0, 4: 350.0}
    rows = [
        Measurement(source=f"r{count}", model="alexnet", backend="gpu", gpu="Test", n_gpus=count,
                    batch_per_gpu=64, images_per_sec=speed)
        for count, speed in speeds.items()
    ]  # fmt: skip
    return study_of(rows, title="t")


def run_folder(path: Path, *, slow: float = 1.0, finished: bool = True, steps: int = 60) -> Path:
    """The folder of a run on two GPUs of a bundled machine, of which tower 1 takes `slow` times as long."""
    path.mkdir(parents=True)
    devices = tuple(Device(tower=tower, device=f"/GPU:{tower}", gpu=tower) for tower in range(2))
    events: list[Event] = [
        RunStarted(
            time_s=0.0, host="h", spec={"batch_size": 32, "model": "alexnet"}, devices=devices, backend="gpu"
        )
    ]
    for step in range(1, steps + 1):
        marks = tuple(
            TowerMarks(tower=tower, start_s=0.0, weights_s=0.01, compute_s=0.1 * (slow if tower else 1.0))
            for tower in range(2)
        )
        events.append(Step(time_s=step * 0.2, step=step, seconds=0.2, images=64, loss=1.0, marks=marks))
        gpus = tuple(GpuSample(gpu=gpu, graphics_mhz=1500, temperature_c=60) for gpu in range(2))
        events.append(Sample(time_s=step * 0.2, gpus=gpus))
    if finished:
        events.append(RunFinished(time_s=steps * 0.2, status="complete", exit_code=0, wall_s=steps * 0.2))
    (path / "events.jsonl").write_bytes(b"".join(map(encode_line, events)))
    schema.write(path / "machine.json", MACHINE)
    return path


def titles(document: Document) -> dict[str, list[str]]:
    """The names of the pictures of each section."""
    drawn = set(document.pictures)
    names = {part.title: [one.name for one in part.blocks if one in drawn] for part in document.sections}
    return {title: of_part for title, of_part in names.items() if of_part}


def test_speedup_and_efficiency_stand_in_the_section_of_their_table() -> None:
    document = study_document(study(), [], of=0)
    assert titles(document) == {"Scaling": ["speedup", "efficiency"]}
    assert "3.5 at 4" in document.pictures[0].alt
    assert "87.5 at 4" in document.pictures[1].alt


@pytest.mark.parametrize("name", ["lambda-cpu", "keras-multi-gpu"])
def test_the_scaling_of_a_published_document_is_drawn_where_its_figures_have_one(name: str) -> None:
    found = published_study(name)
    names = [one.name for one in study_document(found, [], of=0).pictures]
    scaling = [] if name == "lambda-cpu" else ["speedup", "efficiency"]  # four GPUs alone
    assert names == [*scaling, *(["pairs-1", "clocks-1"] if name == "keras-multi-gpu" else [])]


def legend(picture: Picture) -> dict[str, str]:
    """The colour of each job in the legend of a picture."""
    colours: dict[str, str] = {}
    last = ""
    for colour, name in re.findall(r'stroke="var\((--s\d)|>(model\d+)</text>', picture.svg):
        last = colour or last
        colours |= {name: last} if name else {}
    return colours


def test_a_job_has_the_same_colour_in_all_charts_of_a_page() -> None:
    jobs = [
        Measurement(source="s", model=f"model{n}", n_gpus=count, images_per_sec=speed)
        for n in range(20)
        for count, speed in ((1, 100.0), (2 + 2 * (n % 2), 100.0 * (1.2 + n % 7 / 5)))
    ]
    found = study_of(jobs, title="t")
    pictures = study_document(found, [], of=0).pictures
    first, second = (legend(one) for one in pictures)
    assert first == second
    assert len(set(first.values())) == 8
    assert {"model6", "model13"} <= first.keys()  # of the highest speedup


def test_pairs_and_clocks_are_drawn_with_their_figures() -> None:
    found = published_study("keras-multi-gpu")
    pictures = {one.name: one.alt for one in study_document(found, [], of=0).pictures}
    assert "replicated nccl: PIX 0,1 1,429, PHB 0,5 1,176" in pictures["pairs-1"]
    assert "GPU 1: images/sec 84.6, core clock 95" in pictures["clocks-1"]


def test_a_run_has_time_and_step_and_the_machine_of_several_runs_is_drawn_once(tmp_path: Path) -> None:
    folders = RunFolders()
    for name in ("a", "b"):
        folders.run(run_folder(tmp_path / name, slow=1.3, finished=name == "a", steps=20))
    document = study_document(study_of([], title="t"), folders.most_telling(9), of=4)
    assert titles(document) == {"Machine": ["topology-1"], "Run a": ["run-1"], "Run b": ["run-2"]}
    assert document.sections[-1].blocks == ("2 runs have no pictures here.",)


def test_runs_that_failed_or_were_slow_are_shown_before_the_latest(tmp_path: Path) -> None:
    folders = RunFolders()
    odd: dict[int, dict[str, Any]] = {1: {"status": "failed"}, 3: {"conditions": ("slow",)}}
    for day in (5, 1, 2, 3, 4):
        measured = Measurement(source="", images_per_sec=1.0, time_s=float(day), **odd.get(day, {}))
        folders.runs.append((run_folder(tmp_path / str(day), steps=1), measured))
    assert [run.name for run in folders.most_telling(3)] == ["1", "3", "5"]
    (tmp_path / "4/events.jsonl").write_bytes(b"\x00\x01\n")  # a folder that no longer has a run
    assert [run.name for run in folders.most_telling(9)] == ["1", "2", "3", "5"]


def test_a_page_of_many_runs_stays_small_and_no_id_is_there_twice(tmp_path: Path) -> None:
    folders = RunFolders()
    for steps in (500, 9):
        folders.run(run_folder(tmp_path / f"{steps}", slow=1.2, steps=steps))
    html = document_html(study_document(study(), folders.most_telling(9), of=2))
    assert len(html) < 5_000_000 * 2 / 12  # a page has at most 12 runs
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
