"""Lists of hosts: folded names, ports, IPv6 addresses, hostfiles; the order is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.hosts import HostAddress, read_hostfile, read_hosts
from gputopo.values.errors import UsageError
from gputopo.values.index_ranges import host_ranges


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[9-11,7]", "n9 n10 n11 n7"),
        ("rack[1-2]node[01-02]", "rack1node01 rack1node02 rack2node01 rack2node02"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[1-2]-ib0.site:4000, m", "n1-ib0.site:4000 n2-ib0.site:4000 m"),
        ("[fd00::1]:2222,fd00::2,[::1],a:3000", "[fd00::1]:2222 [fd00::2] [::1] a:3000"),
        ("fe80::1%eth0", "[fe80::1%eth0]"),
    ],
)
def test_hosts_are_read_in_the_order_of_the_list(text: str, hosts: str) -> None:
    assert " ".join(str(one) for one in read_hosts("--hosts", text)) == hosts


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("a,,b", "has the invalid host ''", "n[1-4]"),
        ("n[1-3],n2", "lists n2 twice", "once"),
        ("n[3-1]", "[3-1], which counts down", "[1-3]"),
        ("n[a-c]", "cannot have [a-c]", "n[1-4]"),
        ("n[1-2", "a bracket is open", "n[1-4]"),
        ("-oProxyCommand=x", "has the invalid host", "n[1-4]"),
        ("n1:4", "a port is from 1024 to 65535", "remove the number of tasks"),
        ("n1,8", "has the invalid host '8'", "n[1-4]"),
        ("n[1-999][1-999]", "more than 65536 hosts", "n[1-4]"),
    ],
)
def test_a_list_that_cannot_be_is_refused_by_the_name_of_its_option(text: str, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_hosts("--hosts", text)
    assert refused.value.what.startswith("--hosts")
    assert what in refused.value.what
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1\nn2\n", "n1 n2"),
        ("# Open MPI\nn2 slots=4 max_slots=8\n\nn1 slots=4  # the second\n", "n2 n1"),
        ("n1\nn1\nn2\nn2\n", "n1 n2"),  # PBS_NODEFILE: a line a slot
        ("a:4000\r\n[fd00::1]:4000\r\n", "a:4000 [fd00::1]:4000"),
        ("n1 8 all.q@n1 UNDEFINED\nn2 8 all.q@n2 UNDEFINED\n", "n1 n2"),  # PE_HOSTFILE of Grid Engine
    ],
)
def test_a_hostfile_is_read_line_by_line(text: str, hosts: str) -> None:
    assert " ".join(str(one) for one in read_hostfile("--hostfile F", text)) == hosts


def test_a_hostfile_names_the_line_that_cannot_be_read() -> None:
    with pytest.raises(UsageError, match="line 3 of --hostfile F cannot have 'n2:4'"):
        read_hostfile("--hostfile F", "# MPICH\nn1\nn2:4\n")
    with pytest.raises(UsageError, match="--hostfile F has no host"):
        read_hostfile("--hostfile F", "# none\n")


@pytest.mark.parametrize(
    "line",
    [
        "n1 8 n2 8",  # LSB_MCPU_HOSTS
        "rank 0=n1 slot=0",  # a rankfile of Open MPI
        "n1 slots = 8",
    ],
)
def test_a_line_with_more_than_a_host_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="line 2 of --hostfile F has more than a host") as refused:
        read_hostfile("--hostfile F", f"n0\n  {line}  # x\n")
    assert line in refused.value.what
    assert "one host per line" in refused.value.hint


_label = st.from_regex(r"[a-z]([a-z0-9-]{0,4}[a-z0-9])?", fullmatch=True)
_numbered = st.builds(
    lambda head, number, width, tail: f"{head}{number:0{width}}{tail}",
    st.sampled_from(["n", "rack1node", "gpu-"]),
    st.integers(0, 120),
    st.integers(0, 4),
    st.sampled_from(["", "-ib", ".site", "x.site2.org"]),
)
_address = st.ip_addresses().map(str)


@given(st.lists(_label | _numbered | _address, min_size=1, max_size=40, unique=True))
def test_what_is_folded_is_read_back_in_its_order(names: list[str]) -> None:
    assert [one.name for one in read_hosts("--hosts", host_ranges(names))] == names


def test_runs_of_one_prefix_share_their_brackets() -> None:
    assert host_ranges(["n01", "n02", "n07", "m3", "m", "n9"]) == "n[01-02,07],m3,m,n9"


@given(st.lists(st.tuples(_label | _address, st.none() | st.integers(1024, 65535)), min_size=1, unique=True))
def test_addresses_are_read_as_they_are_written(pairs: list[tuple[str, int | None]]) -> None:
    hosts = tuple(HostAddress(name, port) for name, port in pairs)
    assert read_hosts("--hosts", ",".join(map(str, hosts))) == hosts
