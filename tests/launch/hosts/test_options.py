"""The options that name hosts, as they are typed."""

from pathlib import Path

import pytest

from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.options import HostOptions
from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import given_of


def test_a_hostfile_and_a_list_are_hosts(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("n1 slots=4\nn2 slots=4\n")
    given = given_of(HostOptions, {"hostfile": str(file), "node_rank": "1"})
    assert given.fields == {"hostfile": (HostAddress("n1"), HostAddress("n2")), "node_rank": 1}
    assert given_of(HostOptions, {"hosts": "n[1-2]"}).fields == {
        "hosts": (HostAddress("n1"), HostAddress("n2"))
    }


def test_a_hostfile_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--hostfile .* cannot be read: No such file"):
        given_of(HostOptions, {"hostfile": str(tmp_path / "none")})
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        given_of(HostOptions, {"hostfile": str(tmp_path / "bytes")})


@pytest.mark.parametrize(("name", "text"), [("node_rank", "-1"), ("num_hosts", "0"), ("num_hosts", "two")])
def test_a_number_out_of_range_is_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match="--n"):
        given_of(HostOptions, {name: text})
