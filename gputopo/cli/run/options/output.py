"""Where it runs, what is printed and kept, and when it fails."""

from gputopo.cli.choices import require_choice, shape_of
from gputopo.cli.run.offers import Offer
from gputopo.values.errors import UsageError

FORMATS = ("table", "json")
FAIL_ON = ("warning", "error")  # an anomaly is a warning

REPEATS = Offer("--repeats", int, "N", "Run so many times, one after the other; mean and spread.")
REQUIRE_GPU = Offer(
    "--require-gpu", bool, None, "Without a GPU end with exit code 3; do not train on the CPU."
)
OUTPUT = Offer("--output", str, "DIR", "The run's folder. Default: a new one of gputopo's.")
FORMAT = Offer("--format", str, "|".join(FORMATS), "How the result is printed. Default: table.")
JSON = Offer("--json", bool, None, "The same as --format json.")
TF_CNN_LOG = Offer(
    "--tf-cnn-log", bool, None, "Print the log lines of tf_cnn_benchmarks in place of the table."
)
DISPLAY_EVERY = Offer(
    "--display-every", int, "N", "Lines show the first counted step and every N-th. Default: 10."
)
FAIL_ON_OFFER = Offer("--fail-on", str, "|".join(FAIL_ON), "Exit with 1 on an anomaly; each is a warning.")
DRY_RUN = Offer("--dry-run", bool, None, "Show plan, environment and command; start nothing.")

OFFERS = (REPEATS, REQUIRE_GPU, OUTPUT, FORMAT, JSON, TF_CNN_LOG, DISPLAY_EVERY, FAIL_ON_OFFER, DRY_RUN)
OF_THE_CORE = (
    REPEATS,
    OUTPUT,
    TF_CNN_LOG,
    DISPLAY_EVERY,
    FAIL_ON_OFFER,
)  # the others serve a program of the user too


def printed_of(asked: str | None, *, json: bool, tf_cnn_log: bool) -> str:
    """Give how the result is printed: table, json or tf-cnn-log. Raises UsageError for two at once."""
    shape = shape_of(asked, FORMATS, json=json)
    if tf_cnn_log and shape == "json":
        raise UsageError("--tf-cnn-log and JSON both want the standard output", "leave one of them out")
    if tf_cnn_log and asked is not None:
        raise UsageError("--tf-cnn-log and --format table contradict one another", "leave one of them out")
    return "tf-cnn-log" if tf_cnn_log else shape


def fail_on_of(fail_on: str | None) -> str | None:
    """Check `--fail-on`. Raises UsageError."""
    return None if fail_on is None else require_choice("--fail-on", fail_on, FAIL_ON)
