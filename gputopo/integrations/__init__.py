"""Files to copy: a Slurm prolog, a Nagios plugin, alert rules, a Dockerfile, a step of GitHub Actions."""

from importlib import resources

# File names, in the order of the page.
FILES = ("slurm-prolog.sh", "check_gputopo.sh", "prometheus-rules.yml", "Dockerfile", "github-actions.yml")


def read(name: str) -> str:
    """Return the text of a file in `FILES`."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
