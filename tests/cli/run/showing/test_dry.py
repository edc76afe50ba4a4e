"""`gputopo run --dry-run`: what would be planned, set and started."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.cli.run.showing import DryRun
from gputopo.values import schema
from tests.cli.conftest import Call

ROOT = Path(__file__).parents[3]


def test_a_dry_run_shows_plan_environment_and_command_and_starts_nothing(
    call: Call, on_scenario: Callable[[str], None], own_home: Path
) -> None:
    on_scenario("7gforce")
    options = ("run", "--model", "alexnet", "--num-gpus", "2", "--prefer-pix", "--dry-run")
    table = call(*options)
    assert table.code == 0
    for words in (
        "GPUs        0,1",
        "CUDA_VISIBLE_DEVICES=GPU-",
        "-m gputopo.launch.train.worker",
        "\nWhy\n",
    ):
        assert words in table.out
    dry = schema.decode(call(*options, "--json").out, DryRun, origin="stdout")
    assert dry.plan.choice.gpus == (0, 1)
    assert dry.spec is not None
    assert dry.plan.prediction is not None
    choice = dry.plan.choice
    assert (dry.spec.variable_update, dry.spec.all_reduce) == (choice.variable_update, choice.all_reduce)
    assert dry.spec.exchange.ps_spread == (choice.ps_device == "gpu:spread")
    assert dry.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "gputopo.launch.train.worker" in dry.command
    assert not own_home.exists()


def test_the_hierarchical_reduction_gets_its_groups_from_the_machine(call: Call) -> None:
    options = (
        "--from",
        "7gforce",
        "--gpus",
        "0,1,4,5",
        "--all-reduce",
        "hierarchical",
        "--dry-run",
        "--json",
    )
    dry = schema.decode(call("run", "--model", "alexnet", *options).out, DryRun, origin="stdout")
    assert dry.spec is not None
    assert dry.spec.exchange.groups == ((0, 1), (2, 3))
    assert dry.plan.choice.all_reduce == dry.spec.all_reduce == "hierarchical"


def test_variables_spread_over_the_gpus_are_planned_and_run(call: Call) -> None:
    options = ("--from", "7gforce", "--num-gpus", "2", "--ps", "gpu:spread", "--dry-run", "--json")
    dry = schema.decode(call("run", "--model", "alexnet", *options).out, DryRun, origin="stdout")
    assert dry.spec is not None
    assert (dry.plan.choice.ps_device, dry.spec.ps_device, dry.spec.exchange.ps_spread) == (
        "gpu:spread", None, True
    )  # fmt: skip
    assert [device.hop_to_variables for device in dry.spec.devices] == ["spread", "spread"]


@pytest.mark.parametrize(
    ("strategy", "gpus", "update", "ps_device", "hops"),
    [
        ("mirrored", 2, "replicated", None, [None, None]),
        ("MirroredStrategy", 2, "replicated", None, [None, None]),
        ("one-device", 1, "replicated", None, [None]),
        ("central", 2, "parameter_server", "gpu:0", ["local", "PIX"]),
        ("central", 4, "parameter_server", "cpu", ["host"] * 4),
    ],
)
def test_plan_and_spec_agree_on_where_a_strategy_has_its_variables(
    call: Call, strategy: str, gpus: int, update: str, ps_device: str | None, hops: list[str | None]
) -> None:
    asked = ("--from", "7gforce", "--num-gpus", str(gpus), "--strategy", strategy)
    printed = call("run", "--model", "lenet", *asked, "--dry-run", "--json").out
    dry = schema.decode(printed, DryRun, origin="stdout")
    choice, spec = dry.plan.choice, dry.spec
    assert spec is not None
    assert (choice.variable_update, choice.ps_device, choice.all_reduce) == (update, ps_device, None)
    assert (spec.variable_update, spec.all_reduce) == (update, None)
    assert (spec.ps_device is None) == (ps_device is None)
    assert [device.hop_to_variables for device in spec.devices] == hops
    assert (spec.strategy, spec.asked["strategy"]) == (strategy, strategy)
    assert any("weights and gradients go between" in why for why in choice.reasons) == (ps_device is not None)


def test_the_parent_never_imports_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys; from gputopo.cli import run_command; from gputopo.cli.run import training; "
        "code = run_command(['run', '--model', 'alexnet', '--from', '7gforce', '--dry-run']); "
        "sys.exit(code or 'tensorflow' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=120).returncode
        == 0
    )
