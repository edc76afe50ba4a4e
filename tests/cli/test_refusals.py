"""Bad usage of every command: exit code 2, a line what, a line what to do, and nothing is left behind."""

import shlex
from pathlib import Path

import pytest

from gputopo.cli import COMMANDS
from gputopo.values.option import listed
from tests.cli.conftest import Call

# On a machine without a GPU: a command line, and the words of its refusal with ... between them.
REFUSED = """
inspect --form json -> '--form' ... --format
inspect --format jsn -> --format cannot be 'jsn' ... did you mean json
inspect --format -> --format needs a value ... table|json
inspect -q -> there is no option '-q'
inspect --all=some -> --all takes no value
inspect --fail-on warnings -> did you mean warning
inspect capture.txt -> takes no argument 'capture.txt' ... --from capture.txt
inspect --from dgx1-v10 -> dgx1-v100
inspect --from 7gforce --gpu 0,9 -> there is no GPU 9
inspect --from 7gforce --gpu 0000:5e:00.0 -> there is no GPU 0000:5e:00.0
inspect --from 7gforce --gpu 3-1 -> did you mean 1-3?
inspect --from 7gforce --gpu '' -> --gpu cannot be ''
inspect --from 7gforce --format csv -> --format csv is for --watch
inspect --from 7gforce -i 0 --all -> --all and --gpu cannot be combined
inspect --from 7gforce --topology --json -> --topology is for the report of one machine, not with
inspect --from 7gforce --all --diff 7gforce -> --all is for the report of one machine
inspect --diff nowhere.json -> there is no file nowhere.json
inspect --diff 7gforce --format prometheus -> --diff cannot print prometheus
inspect --diff - --from - -> standard input can be read only once
inspect --interval 1 -> --interval and --duration belong to --watch
inspect --watch --from 7gforce -> --watch and --from cannot be combined
inspect --watch --format markdown -> --watch cannot print --format markdown
inspect --watch --interval 0 -> --interval cannot be
inspect --fleet -> --fleet compares hosts and needs files of at least two hosts
inspect --fleet --from a.json b.json -> none of 2 files can be read: there is no file a.json
inspect --fleet --watch -> --fleet and --watch cannot be combined
inspect --from 7gforce --baseline x -> --baseline is for several hosts
inspect --from 7gforce --format scontrol -> --format scontrol is for several hosts
inspect --fleet --from 7gforce dgx1-p100 --baseline x -> --baseline x has no recordings
inspect --fleet --identities -> --fleet and --identities cannot be combined
bandwidth --quick --full -> both mean --effort
bandwidth --from x --gpus 0 -> --gpus
bandwidth --from x --soak 10 -> --soak
bandwidth --soak 10 --full -> combined with --effort
bandwidth --model alexnet -> gputopo bench-reduction --model NAME
bandwidth --numa -1 -> 0 to 9999
bandwidth --gpus 0;1 -> 0,1
bandwidth --from 7gforce --all --json -> --all is for the tables
bandwidth --matrices -> write --all
bandwidth --effort lots -> give quick, full, or the number of repeats
bandwidth --network --effort 20 -> --effort 20 is for one host
bandwidth --size '' -> --size cannot be
bandwidth --size 1023 -> --size cannot be
plan -> --model is missing ... alexnet
plan --model alexnet --num-gpus two -> --num-gpus ... integer
plan --model alexnet --gpus 0;1 -> --gpus ... 0,1
plan --model alexnet --gpus 1,1 -> --gpus ... twice
plan --model alexnet --ps gpu0 -> 'gpu0' ... gpu:0
plan --model alexnet --variable-update replicate -> did you mean replicated
plan --from 7gforce --model alexnex -> there is no model 'alexnex' ... did you mean alexnet
plan --from 7gforce --model alexnet --program tf_cnn -> no program 'tf_cnn' ... did you mean tf_cnn_benchmarks
plan --from 7gforce --model alexnet --num-gpus 9 -> requested 9 GPUs, but this machine has 7 ... --num-gpus 7
plan --from 7gforce --model alexnet --num-gpus 0 -> --num-gpus cannot be 0 ... give 1 or more
plan --from 7gforce --model alexnet --ps gpu:9 -> this machine has no GPU 9 ... 0-6; or use --ps cpu
plan --from 7gforce --model alexnet --exclude 0-6 -> none of the 7 GPUs can be used ... exclude fewer GPUs
plan --from 7gforce --model alexnet --exclude 12 -> GPU 12
plan --from 7gforce --model alexnet --num-gpus 2 --exclude 0-5 -> 2 GPUs
plan --from 7gforce --model alexnet --ps cpu --variable-update independent -> independent
plan --from 7gforce --model alexnet --num-gpus 3 --all-reduce tf_hierarchical -> tf_hierarchical
plan --from 7gforce --model alexnet --gpus 0,1 --ps gpu:3 -> gpu:3 is not one of the chosen ... add 3
plan --from 7gforce --model alexnet --gpus 0,9 -> no GPU 9 ... the GPUs of this machine: 0-6
plan --from 7gforce --model alexnet --single-gpu-images-per-sec nan -> cannot be 'nan' ... above 0
plan --from 7gforce --model alexnet --single-gpu-images-per-sec 1,2 -> 2 numbers for 7 GPUs
plan --from 7gforce --model alexnet --batch-size auto,64 -> --batch-size
plan --from 7gforce --model alexnet --batch-size nan -> --batch-size cannot be 'nan' ... give --batch-size N
plan --from 7gforce --model alexnet --batch-size 64,64 -> 2 numbers for 7 GPUs
plan --from 7gforce --model alexnet --batch-size 100000000 -> (counted from its layers)
plan --from 7gforce --model alexnet --candidates none -> --candidates cannot be 'none' ... all: also
plan --from 7gforce --model alexnet --what-if faster -> --what-if does not know 'faster' ... such as
plan --from 7gforce --model alexnet --use_xla_compile -> there is no option '--use-xla-compile'
plan --model alexnet --autotune --from 7gforce -> --from
plan --model alexnet --autotune --candidates all -> --candidates all
plan --model alexnet --autotune --explain -> nothing predicted
run -> nothing to run
run train.py -> takes no argument 'train.py'
run --json -- true -> a program, which uses stdout
run --display_every 5 -- true -> --display-every works with the built-in training
run --from 7gforce -- true -> --from plans for another machine
run -- no-such-program-here -> there is no program
run --single-gpu-images-per-sec 9 -- python -> --single-gpu-images-per-sec needs --model
run --model alexnet --autotune -- true -> --autotune works with the built-in training
run --from 7gforce --model alexnet --num-gpus 8 -> 8
run --from 7gforce --model alexnet --require-gpu -> cannot be combined
run --model alexnet --batch-size 0 -> --batch-size cannot be 0
run --model alexnet --num-warmup-batches -1 -> --num-warmup-batches cannot be -1
run --model alexnet --num-gpus 1000 -> --num-gpus cannot be 1000
run --model alexnet --gpus 0 -> --gpus needs GPUs, but this machine has none
run --model alexnet --gain 0.3 -> there is no option '--gain'
run --model alexnet --num-gpus auto:2 -> --num-gpus cannot be 'auto:2'
run --model alexnet --sbatch-option a=b --dry-run -> --sbatch-option is for a batch script
run --model alexnet --single-gpu-images-per-sec 9 -> --single-gpu-images-per-sec needs a GPU
run --model alexnet --program keras-2017 -> it is for plan;
run --model alexnet --ps gpu:7 -> --ps gpu:7
run --model alexnet --data-dir /nowhere/at/all -> there is no folder /nowhere/at/all
run --model alexnet --json --format table -> --json and --format both mean --format
run --model alexnet --eval --task train -> both mean --task, with
run --model alexnet --ps cpu --local_parameter_device=gpu -> both mean --ps, with
run --model alexnet --output /proc/nowhere -> cannot make the run folder
run --model alexnet --output '' -> --output needs a folder
run --model alexnet --prometheus '' -> --prometheus
run --model alexnet --prometheus . -> --prometheus
run --model alexnet --seed 999999999999999999999 -> --seed cannot be 999
run --model alexnet --stall-timeout 0 -> --stall-timeout cannot be 0
run --model alexnet --format sbatch -> add --dry-run
run --model alexnet --cpu --dry-run --format docker -> the plan has none: --cpu
run --model alexnet --min-hosts 2 -> start it again with --resume auto
run --model alexnet --hosts a,b --restart 1 --checkpoints kept -> start the job again with --resume auto
run --model alexnet --batch-size 4,6 --num-gpus 3 -> --batch-size has 2 numbers for 3 devices
run --model alexnet --batch-size 4,6 --method kuza55 -> it splits one batch evenly
run --model alexnet --autotune --dry-run -> --dry-run
run --model alexnet --autotune --task forward -> --task forward
run --model alexnet --autotune --ps cpu -> only one placement
run --model alexnet --autotune --num-gpus 1 -> one device
run --model alexnet --autotune=1 -> --autotune
run --model alexnet --repeats 2 --checkpoints kept -> --checkpoints ... --repeats
run --model alexnet --optimizer momentun -> --optimizer
run --model alexnet --optimizer momentum --momentum 1.0 -> below 1
run --model alexnet --precision fp16 --loss-scale 1e300 -> --loss-scale cannot be
run --model alexnet --checkpoints '' -> --checkpoints needs a folder
run --model alexnet --checkpoints kept --resume latest -> write only --resume, or --resume auto
run --model alexnet --all-reduce '' -> there is no reduction ''
run --model alexnet --cache yes -> --cache cannot be 'yes'
run --model alexnet --data-dir ~nobody-of-this-name/x -> --data-dir
run --model alexnet --learning-rate-schedule cosin:5 -> --learning-rate-schedule
run --model alexnet --trace 5-3 -> --trace
run --model alexnet --num-warmup-batches some -> --num-warmup-batches
run --model alexnet --strategy mirored -> strategy
run --model alexnet --on-anomaly "'unclosed" -> --on-anomaly
run --model alexnet --on-anomaly '/no/such/program --now' -> --on-anomaly
screen --model alexnet --from 7gforce -> --from
screen --model alexnet --gpus 0 -> --gpus
screen --model alexnet --seconds 0 -> --seconds
sweep -> give a preset (quick
sweep quik -> did you mean quick?
sweep quick --matrix x.toml -> a preset, --matrix and --model cannot be combined
sweep --matrix nowhere.toml -> cannot read nowhere.toml
sweep --model alexnot --dry-run -> alexnot
sweep --repeats 2 --dry-run -> --repeats needs --model
sweep quick --retry-failed -> add --resume DIR
sweep --resume nowhere -> holds no sweep
sweep quick --seed 3 -> add --order random
sweep --resume nowhere --cpu -> --cpu cannot be combined with --resume
report no-such-folder -> does not exist
report --published tensorpack x -> --published cannot be combined
report --published nothing -> nothing
report --published keras-multi-gpu --output report.pdf -> cannot write .pdf files
report --history -> gputopo run adds its results
report --model alexnet -> --history
bench-reduction -> --model is missing
bench-reduction --model alexnet --save -> there is no option '--save'
explain pcie.slot_narow -> did you mean gputopo explain pcie.slot_narrow?
explain 999 -> there is no page, finding, Xid, model or option '999'
explain --search 'no such word' -> no page contains 'no such word'
explain plan --search pix -> --search looks in all pages
explain schema reslut -> did you mean result?
explain schema gputopo.result/1 -> did you mean result?
explain integrations Dockerfil -> there is no file 'Dockerfil'
completion csh -> bash
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_usage_is_refused_in_two_lines_and_leaves_nothing_behind(
    command: str,
    call: Call,
    without_gpu: None,
    own_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for line in REFUSED.strip().splitlines():
        words, _, said = line.partition(" -> ")
        if command not in words.split()[:1]:
            continue
        done = call(*shlex.split(words))
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 2), line
        what, hint = done.err.splitlines()
        assert (what[:9], hint[:2], bool(hint.strip())) == ("gputopo: ", "  ", True), line
        assert [part for part in said.split(" ... ") if part not in done.err] == [], (line, done.err)
    assert not own_home.exists()
    assert list((tmp_path / "here").iterdir()) == []


def test_an_unknown_command_is_refused_with_the_nearest_or_with_all(call: Call) -> None:
    assert "did you mean gputopo inspect?" in call("inspekt").err
    assert listed(COMMANDS, "and") in call("frobnicate").err
    assert [call(word).code for word in ("inspekt", "frobnicate", "--fast")] == [2, 2, 2]
