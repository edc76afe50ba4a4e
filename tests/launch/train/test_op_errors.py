import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gputopo
from gputopo.launch.train import cause_and_remedy, first_line, gpu_remedy, unreachable_rank

SEE_LOG = "see worker.log in the run folder"
# As TensorFlow 2.21 wrote them, names and paths shortened.
XLA = """Graph execution error:

Detected at node AsString defined at (most recent call last):
<stack traces unavailable>
Detected at node AsString defined at (most recent call last):
<stack traces unavailable>
2 root error(s) found.
  (0) INVALID_ARGUMENT:  Detected unsupported operations when trying to compile graph __inference_both_408[] \
on XLA_CPU_JIT: AsString (No registered 'AsString' OpKernel for XLA_CPU_JIT devices compatible with node \
{{node AsString}}){{node AsString}}
The op is created at:
File "train.py", line 31, in <module>
\ttf2xla conversion failed while converting __inference_both_408[].
\t [[tower_1/PartitionedCall]]
  (1) INVALID_ARGUMENT:  Detected unsupported operations when trying to compile graph __inference_both_276[] \
on XLA_CPU_JIT: AsString
0 successful operations.
"""
STACK = """Graph execution error:

Detected at node 'conv1/Conv2D' defined at (most recent call last):
  File "train.py", line 31, in <module>
    y = tf.nn.conv2d(x)
Node: 'conv1/Conv2D'
The Conv2D op currently only supports the NHWC tensor format on the CPU.
\t [[{{node conv1/Conv2D}}]]
"""
# Server 2 was killed while server 1, which has the variables, waited for its gradients.
GONE = """Graph execution error:

Detected at node update/AddN_2/_88 defined at (most recent call last):
<stack traces unavailable>
2 root error(s) found.
  (0) UNAVAILABLE:  recvmsg:Connection reset by peer
Additional GRPC error information from remote target /job:worker/replica:0/task:2 while calling \
/tensorflow.WorkerService/RecvTensor:
:UNKNOWN:Error received from peer  {grpc_message:"recvmsg:Connection reset by peer", grpc_status:14}
\t [[{{node tower_2/MatMul_4/_66}}]]
Additional GRPC error information from remote target /job:worker/replica:0/task:1/device:CPU:0 while calling \
/tensorflow.eager.EagerService/RunComponentFunction:
"""


def test_of_hosts_that_wait_for_each_other_the_one_that_is_gone_is_found() -> None:
    assert unreachable_rank(GONE, "UnavailableError") == 2
    assert unreachable_rank(GONE.replace("task:2", "task:12"), "UnavailableError") == 12


def test_a_host_that_tensorflow_reports_is_found() -> None:
    """Worker 1 of a strategy was stopped, and sent no sign of life."""
    text = "Collective ops is aborted by: Error reported from /job:worker/task:1: The following tasks"
    assert unreachable_rank(text, "UnavailableError") == 1


def test_an_error_that_another_host_only_reported_is_not_one_of_the_network() -> None:
    assert (
        unreachable_rank(GONE.replace("UNAVAILABLE", "RESOURCE_EXHAUSTED"), "ResourceExhaustedError") is None
    )
    assert unreachable_rank(XLA, "UnavailableError") is None


def test_an_op_that_xla_does_not_know_is_named_with_the_workaround() -> None:
    assert cause_and_remedy(XLA, "InvalidArgumentError") == (
        "XLA has no kernel for the op AsString of this model",
        "remove --xla",
    )


def test_an_op_without_a_deterministic_kernel_is_named_with_the_workaround() -> None:
    texts = (
        "A deterministic GPU implementation of AdjustContrastv2 is not currently available.",
        "Determinism is not yet supported in GPU implementation of Bincount.",
    )
    for text in texts:
        assert cause_and_remedy(f"{text}\n\t [[{{{{node x}}}}]]", "UnimplementedError") == (
            text,
            "remove --deterministic",
        )
    assert cause_and_remedy("deterministic = nan", "InvalidArgumentError")[1] == SEE_LOG


def test_headings_and_stacks_are_passed_over() -> None:
    assert cause_and_remedy(STACK, "InvalidArgumentError") == (
        "The Conv2D op currently only supports the NHWC tensor format on the CPU. (train.py, line 31)",
        f"look at that line, or {SEE_LOG}",
    )


def test_the_first_of_several_causes_is_reported_without_its_number() -> None:
    assert first_line("2 root error(s) found.\n  (0) ABORTED: gone\n  (1) ABORTED: x") == "ABORTED: gone"


@given(st.text())
@example("x" * 999)
def test_any_text_gives_one_line_of_limited_length(text: str) -> None:
    line = first_line(text)
    assert len(line) <= 300
    assert len(line.splitlines()) <= 1


def test_the_graphs_own_name_of_the_place_is_left_out() -> None:
    text = (
        "{{function_node __wrapped__StridedSlice_device_/job:localhost/device:CPU:0}} "
        "OOM when allocating tensor with shape[6000,154587] [Op:StridedSlice]"
    )
    assert first_line(text) == "OOM when allocating tensor with shape[6000,154587] [Op:StridedSlice]"


KERAS = "/venv/lib/python3.12/site-packages/keras/src/layers/layer.py"
TENSORFLOW = "/venv/lib/python3.12/site-packages/tensorflow/python/ops/gen_array_ops.py"
MODEL = "import keras\n\ndef scale(x):\n    return 1 / x\n"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    return file


def line_in(text: str) -> str | None:
    """Return the user's line in the cause of an error."""
    cause, remedy = cause_and_remedy(text, "InvalidArgumentError")
    line = re.search(r" \((.*, line .*)\)$", cause)
    assert remedy == (f"look at that line, or {SEE_LOG}" if line else SEE_LOG)
    return line and line[1]


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (
            [("FILE", 1), ("FILE", 4), (re.__file__, 9), (gputopo.__file__, 9), (KERAS, 9)],
            "model.py, line 4: return 1 / x",
        ),
        ([("/elsewhere/layers.py", 12), (KERAS, 9)], "/elsewhere/layers.py, line 12"),
        ([(KERAS, 9), ("<frozen runpy>", 1)], None),
    ],
)
def test_a_message_of_tensorflow_is_placed_by_the_stack_of_its_op(
    model: Path, frames: list[tuple[str, int]], said: str | None
) -> None:
    stack = "".join(
        f'  File "{file.replace("FILE", str(model))}", line {line}, in call\n' for file, line in frames
    )
    text = f"Graph execution error:\n\nDetected at node A defined at (most recent call last):\n{stack}Bad.\n"
    assert line_in(text) == said


def test_what_a_python_function_of_an_op_raised_comes_before_where_the_op_was_made(model: Path) -> None:
    text = (
        f'Detected at node PyFunc defined at (most recent call last):\n  File "{model}", line 1, in show\n'
        "ValueError: no\nTraceback (most recent call last):\n\n"
        f'  File "{TENSORFLOW}", line 9, in __call__\n    ret = func(*args)\n\n'
        f'  File "{model}", line 4, in scale\n    return 1 / x\n\nValueError: no\nBad.\n'
    )
    assert line_in(text) == "model.py, line 4: return 1 / x"


# As TensorFlow's nccl_manager.cc makes it; the first line as in tensorflow#44637, of 2.3.
OF_NCCL = """2 root error(s) found.
  (0) INTERNAL:  NCCL: unhandled system error. Set NCCL_DEBUG=WARN for detail.
\t [[{{node CollectiveReduceV2}}]]
"""


def test_an_error_of_nccl_says_what_to_use_instead_and_how_to_find_the_reason() -> None:
    cause, remedy = cause_and_remedy(OF_NCCL, "InternalError")
    assert cause.endswith("NCCL: unhandled system error. Set NCCL_DEBUG=WARN for detail.")
    assert remedy.startswith("use --all-reduce copy; ")
    assert "NCCL_DEBUG=INFO" in remedy


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        # tensorflow#99592, on a GeForce RTX 5070
        ("'cuLaunchKernel(...)' failed with 'CUDA_ERROR_INVALID_HANDLE'", "no kernels for this GPU"),
        ("DNN library initialization failed. Look at the errors above for more details.", "LD_LIBRARY_PATH"),
    ],
)
def test_a_gpu_that_fails_at_its_first_step_has_a_remedy(reason: str, words: str) -> None:
    assert words in gpu_remedy(reason)
