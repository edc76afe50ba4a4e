"""Hosts with home folders of their own share a secret by the variable."""

import os
from collections.abc import Iterator

import pytest

SECRET = "GPUTOPO_SECRET"


@pytest.fixture(scope="package", autouse=True)
def shared_secret() -> Iterator[None]:
    """Sets the variable, for what is started once for several tests, too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(SECRET, "the secret of these hosts")
        yield


@pytest.fixture(autouse=True)
def secret_again(shared_secret: None) -> None:
    """Sets it again: a command that runs here has taken it."""
    os.environ[SECRET] = "the secret of these hosts"
