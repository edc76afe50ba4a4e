"""`gputopo report`: logs, runs of gputopo, killed runs, hostile names, regressions, published documents."""

import csv
import io
import json
import os
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from gputopo.runs import BoxHistory, summarise
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth, CopyRate, Samples
from gputopo.values.ends import End
from gputopo.values.run.events import encode_line
from gputopo.values.study import Study
from tests.captures.test_tf_cnn import log
from tests.cli.conftest import Call
from tests.invented_runs import InventedRun, cpu_devices, stream
from tests.kit.machines import read_machine
from tests.measurements.test_from_ours import sweep_folder
from tests.runs.test_history import result_of
from tests.runs.test_history import run_folder as ended_run

HOSTILE = "<script>alert(1)</script>|`x`|[a](javascript:x)\x1b[31m"


def run_folder(path: Path, devices: int, *, speed: float | None = None, killed: bool = False) -> Path:
    """Write a run folder: whole with its result, or its first events and half a line."""
    path.mkdir(parents=True)
    events = list(stream(cpu_devices(devices), InventedRun(devices).steps(20)))
    if killed:
        half = b"".join(map(encode_line, events[: len(events) // 2])) + b'{"event":"step","ti'
        (path / "events.jsonl").write_bytes(half)
        return path
    result = summarise(events)
    if speed is not None:
        assert result.throughput is not None
        throughput = msgspec.structs.replace(result.throughput, mean=speed, uncertainty=speed / 1000)
        result = msgspec.structs.replace(result, throughput=throughput)
    (path / "result.json").write_bytes(schema.encode(result))
    return path


def study(call: Call, *words: object) -> Study:
    done = call("report", *map(str, words), "--json")
    assert done.code == 0, done.err
    return schema.decode(done.out, Study, origin="stdout")


def test_logs_and_runs_make_one_report_in_every_form(call: Call, tmp_path: Path) -> None:
    for number, total in ((1, "210.00"), (2, "400.00"), (4, "801.20")):
        (tmp_path / f"resnet50-{number}.log").write_text(log(devices=number, total=total))
    run_folder(tmp_path / "own", 2)
    words = ("report", str(tmp_path))

    table = call(*words)
    assert table.code == 0, table.err
    assert "Scaling" in table.out
    assert "95.38" in table.out  # % efficiency on 4 GPUs
    markdown = call(*words, "--format", "markdown").out
    assert "## Scaling" in markdown
    rows = list(csv.DictReader(io.StringIO(call(*words, "--format", "csv").out)))
    assert [row["images_per_sec"] for row in rows if row["framework"] == "tf_cnn_benchmarks"] == [
        "210.0", "400.0", "801.2",
    ]  # fmt: skip
    assert "<title>Training throughput" in call(*words, "--format", "html").out


def test_what_was_exported_is_the_same_when_it_is_read_again(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(log())
    (tmp_path / "failed.log").write_text(log(total=None, tail="Killed"))
    first = study(call, tmp_path)
    for form in ("csv", "json"):
        file = tmp_path / "out" / f"study.{form}"
        file.parent.mkdir(exist_ok=True)
        assert call("report", str(tmp_path / "a.log"), str(tmp_path / "failed.log"), "--format", form,
                    "--output", str(file)).code == 0  # fmt: skip
        again = study(call, file)
        assert [cell.images_per_sec for cell in again.figures.cells] == [
            cell.images_per_sec for cell in first.figures.cells
        ]
        assert [cell.failed for cell in again.figures.cells] == [cell.failed for cell in first.figures.cells]


def test_a_killed_run_has_its_reason_and_no_figure_and_fails_where_asked(call: Call, tmp_path: Path) -> None:
    run_folder(tmp_path / "good", 1)
    run_folder(tmp_path / "killed", 2, killed=True)

    done = call("report", str(tmp_path), "--fail-on", "error")
    assert done.code == 1
    assert "the events of the run stop before its end" in done.out
    assert call("report", str(tmp_path)).code == 0
    assert [cell.images_per_sec is None for cell in study(call, tmp_path).figures.cells].count(True) == 1


@pytest.mark.parametrize(("now", "code"), [(85.0, 1), (99.5, 0), (120.0, 0)])
def test_a_regression_beyond_the_noise_has_exit_code_one(
    call: Call, tmp_path: Path, now: float, code: int
) -> None:
    before = run_folder(tmp_path / "before", 2, speed=100.0)
    after = run_folder(tmp_path / "after", 2, speed=now)

    done = call("report", str(after), "--baseline", str(before), "--fail-on", "warning")
    assert done.code == code
    assert study(call, after, "--baseline", before).has_regression == (code == 1)
    assert not study(call, after, "--baseline", before, "--smallest-effect", 20).has_regression


def test_a_baseline_with_which_nothing_can_be_compared_is_an_error(call: Call, tmp_path: Path) -> None:
    before, after = run_folder(tmp_path / "before", 2), run_folder(tmp_path / "after", 3)
    done = call("report", str(after), "--baseline", str(before), "--fail-on", "warning")
    assert (done.code, done.out) == (2, "")
    assert "0 of 1 cells compared with --baseline: the runs differ in number of GPUs" in done.err


def test_hostile_names_and_contents_are_shown_as_they_are_in_no_markup(call: Call, tmp_path: Path) -> None:
    rows = {"model": HOSTILE, "machine": "=HYPERLINK(1)", "images_per_sec": "10", "source": "../../../etc/x"}
    text = io.StringIO()
    writer = csv.DictWriter(text, rows)
    writer.writeheader()
    writer.writerow(rows)
    (tmp_path / "t.csv").write_text(text.getvalue())

    words = ("report", "--import", str(tmp_path / "t.csv"))
    for form in ("table", "markdown", "html"):
        out = call(*words, "--format", form).out
        assert "\x1b" not in out, form
        assert "alert" in out
    assert "<script>alert" not in call(*words, "--format", "html").out
    assert "\\<script\\>" in call(*words, "--format", "markdown").out
    assert "'=HYPERLINK" in call(*words, "--format", "csv").out
    (tmp_path / "in").mkdir()
    done = call(*words, "--format", "markdown", "--output", tmp_path / "in" / "summary.md")
    assert done.code == 0, done.err
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    page = "in/summary-models/script-alert-1-script-x-a-javascript-x-31m.md"
    assert written == [page, "in/summary.md", "t.csv"]


def test_what_cannot_be_read_is_listed_with_its_reason_beside_the_rest(call: Call, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    good = run_folder(runs / os.fsdecode(b"bad\xff\n<b>"), 1)
    shutil.copytree(good, runs / "copy")
    (run_folder(runs / os.fsdecode(b"damaged\xff"), 3) / "events.jsonl").write_bytes(b"\xff\n")
    half = run_folder(runs / "zeros", 1, killed=True) / "events.jsonl"
    half.write_bytes(b"\0" * 4096)
    newer = run_folder(runs / "newer", 1) / "result.json"
    newer.write_text('{"schema": "gputopo.result/7"}')
    for form in ("table", "markdown", "html", "json", "csv"):
        done = call("report", runs, "--format", form, "--output", tmp_path / f"out.{form}")
        assert done.code == 0, done.err
        text = (tmp_path / f"out.{form}").read_bytes().decode()
        assert "<b>" not in text or form in ("table", "json", "csv")
    found = schema.decode((tmp_path / "out.json").read_bytes(), Study, origin="out.json")
    assert sum(len(one.duplicates) for one in found.figures.cells) == 1
    why = " ".join(one.why for one in found.unread)
    assert f"{len(found.unread)} files could not be read." in found.headline
    assert "gputopo.result/7" in why
    assert "ended before it started" in why
    shutil.rmtree(good)
    shutil.rmtree(runs / "copy")
    shutil.rmtree(runs / os.fsdecode(b"damaged\xff"))
    done = call("report", runs)
    assert (done.code, len(done.err.splitlines())) == (2, 2)
    assert "gputopo.result/7" in done.err


def test_the_manifest_of_a_sweep_stands_for_its_folder(call: Call, tmp_path: Path) -> None:
    sweep_folder(tmp_path / "sweep")
    by_file, by_folder = (call("report", tmp_path / "sweep" / name).out for name in ("sweep.json", ""))
    assert "2 runs under" in by_file
    assert "no free GPU" in by_file
    assert by_file == by_folder


def test_an_empty_folder_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("nothing")
    done = call("report", str(tmp_path))
    assert done.code == 2
    assert "there are no measurements" in done.err


def test_without_runs_those_of_the_user_are_reported(call: Call, own_home: Path) -> None:
    assert "there are no runs in" in call("report").err
    run_folder(own_home / "runs" / "one", 1)
    assert "1 run under" in call("report").out


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("report.html", "<!DOCTYPE html>"),
        ("report.md", "# keras-multi-gpu"),
        ("report.json", "{"),
        ("report.txt", "Scaling to all GPUs"),
    ],
)
def test_a_file_has_the_format_of_its_suffix_unless_another_is_asked_for(
    name: str, begins: str, call: Call, tmp_path: Path
) -> None:
    words = ("report", "--published", "keras-multi-gpu", "--output", tmp_path / name)
    assert call(*words) == (0, "", "")
    assert (tmp_path / name).read_text().startswith(begins)
    assert call(*words, "--format", "csv").code == 0
    assert (tmp_path / name).read_text().startswith("source,")


def test_html_and_markdown_carry_the_pictures_of_the_runs(call: Call, tmp_path: Path) -> None:
    run_folder(tmp_path / "runs" / "killed", 2, killed=True)
    done = call("report", tmp_path / "runs", "--format", "html", "--output", tmp_path / "report.html")
    assert done.code == 0, done.err
    html = (tmp_path / "report.html").read_text()
    assert html.count("<svg") == 1
    assert "Run killed" in html
    assert re.search(r"<footer.*\d UTC, gputopo [\d.]+, of unknown machines: gputopo", html)
    new = tmp_path / "new" / "folder"
    done = call("report", tmp_path / "runs", "--format", "markdown", "--output", new / "report.md")
    assert done.code == 0, done.err
    text = (new / "report.md").read_text()
    files = {path.name for path in (new / "report-pictures").iterdir()}
    assert files == {"run-1.svg"}
    assert all(f"](report-pictures/{name})" in text for name in files)


@pytest.fixture
def own_history(call: Call, without_gpu: None, own_home: Path) -> Path:
    """A history of this machine: eight runs of alexnet, a fifth slower from the fifth on; one of vgg16."""
    machine = read_machine(Path(os.environ["GPUTOPO_ROOT"]))
    for day in range(8):
        speed = 1000.0 if day < 4 else 800.0
        ended_run(own_home / f"runs/{day}", result_of(speed), 86400.0 * day, machine)
    ended_run(own_home / "runs/v", result_of(5.0, "vgg16"), 0.0, machine)
    return own_home


def test_the_history_names_what_is_worse_and_since_when(call: Call, own_history: Path) -> None:
    done = call("report", "--history")
    assert done.code == 0, done.err
    assert "20% lower since 1970-01-05" in done.out.splitlines()[0]
    assert "vgg16" in done.out
    assert call("report", "--history", "--fail-on", "warning").code == 1
    listed = list(csv.DictReader(io.StringIO(call("report", "--history", "--format", "csv").out)))
    assert len(listed) == 9
    assert json.loads(call("report", "--history", "--json").out)["changes"][0]["percent"] == pytest.approx(
        20.0
    )
    page = call("report", "--history", "--format", "html").out
    assert "Speeds over time" in page


def test_the_history_is_filtered_by_model_and_date(call: Call, own_history: Path) -> None:
    only = call("report", "--history", "--model", "vgg16", "--json")
    assert [run["model"] for run in json.loads(only.out)["runs"]] == ["vgg16"]
    late = call("report", "--history", "--since", "1970-01-05", "--json")
    assert len(json.loads(late.out)["runs"]) == 4
    machine = read_machine(Path(os.environ["GPUTOPO_ROOT"]))
    copy = CopyRate(kind="h2d", source=End("host"), destination=End("gpu:0"), median_gb_per_s=9.0)
    measured = Bandwidth(source="live", samples=Samples((copy,)))
    BoxHistory(own_history).save(machine, measured, saved_at=8.0 * 86400)
    rates_alone = call("report", "--history", "--since", "1970-01-09").out
    assert ("0 runs on " in rates_alone, "host to GPU 0" in rates_alone) == (True, True)
    for words in (("--since", "1970-01-10"), ("--since", "yesterday"), ("--model", "lenet"), (own_history,)):
        assert call("report", "--history", *words).code == 2
