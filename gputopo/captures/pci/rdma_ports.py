"""The text of `ibstat`, `ibstatus`, `ibv_devinfo`, `rdma link` and `ibdev2netdev`: text in, Machine out.

    CA 'mlx5_0'
            Firmware version: 28.39.1002
            Port 1:
                    State: Active
                    Rate: 400

Rates are Gbit/s. That of a port without a link is dropped, since it is the lowest one of the card. GUIDs only
tell two hosts apart. The MTU here is that of RDMA and not that of the interface.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gputopo.captures.ledger import Claims, Format, read_lines
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine, Nic, NicPort
from gputopo.values.subject import EVERY, at_nic, item

_HINT = "copy the output of one host again"
_NAME = r"([A-Za-z][\w.-]{0,63})"
# What begins the lines of a card, or of a port, by the tool that prints it.
_CARDS = {
    "ibstat": re.compile(rf"^CA:? '{_NAME}'\s*$"),
    "ibstatus": re.compile(rf"^Infiniband device '{_NAME}' port (\d{{1,3}}) status:\s*$"),
    "ibv_devinfo": re.compile(rf"^hca_id:\s*{_NAME}\s*$"),
}
_PORT = re.compile(r"^\s*[Pp]ort(?: |:\s*)(\d{1,3}):?\s*$")
_FACT = re.compile(r"^\s*([A-Za-z][\w /]{1,40}?)\s*:\s*(\S.{0,120}?)\s*$")
_LINK = re.compile(
    rf"^\s*(?:link |\d{{1,4}}/\d{{1,3}}: ){_NAME}/(\d{{1,3}}):? (?:.{{0,200}} )?state (\w{{1,20}})"
    r" physical_state (\w{1,40})(?: netdev (\S{1,32}))?(?: .*)?$"
)
_DEVICE = re.compile(rf"^\s*\d{{1,4}}: {_NAME}: node_type \w{{1,20}} fw (\S{{1,40}})(?: .*)?$")
_INTERFACE = re.compile(rf"^\s*(?:\S{{1,20}}: )?{_NAME} port (\d{{1,3}}) ==> (\S{{1,32}}) \((Up|Down)\)\s*$")
_FIRMWARE = ("firmware version", "fw_ver")
_GUID = ("node guid", "node_guid")
# By linux: drivers/infiniband/core/sysfs.c, state_show; as ibstat writes them where it differs.
_STATES = {name: name for name in ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")} | {
    "INITIALIZING": "INIT",
    "ACTIVEDEFER": "ACTIVE_DEFER",
}
# By linux: drivers/infiniband/core/sysfs.c, phys_state_show.
_PHYS_STATES = (
    "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "Phy Test",
)  # fmt: skip
_NUMBERS = {
    "rate": re.compile(r"(\d{1,4}(?:\.\d{1,3})?)(?: Gb/sec)?(?: \((?:(\d{1,2})X\b)?.*\))?$"),
    "active_width": re.compile(r"(\d{1,2})X\b"),
    "active_speed": re.compile(r"(\d{1,3}(?:\.\d{1,3})?) Gbps\b"),
}


@dataclass(slots=True)
class _Card:
    """What is reported of one RDMA device; its ports by number."""

    about: dict[str, str] = field(default_factory=dict)
    ports: dict[int, dict[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Scan:
    """One text, line by line. `cards`: by name, in order; `strange`: two values of one fact."""

    cards: dict[str, _Card] = field(default_factory=dict)
    tools: dict[str, None] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    read: frozenset[int] = frozenset()
    known: set[int] = field(default_factory=set)
    name: str | None = None
    port: int | None = None

    def take(self, number: int, line: str) -> bool:
        """Take one line; False where it is not read."""
        if (begun := _begun(line)) is not None:
            tool, self.name, self.port = begun
            self.tools[tool] = None
            self.cards.setdefault(self.name, _Card())
            return True
        if self._of_one_line(line):
            self.name = self.port = None
            return True
        if self.name is None:
            return False
        if port := _PORT.match(line):
            self.port = int(port[1])
            self.cards[self.name].ports.setdefault(self.port, {})
            return True
        fact = _FACT.match(line)
        if fact and fact[1].lower() in _USED:
            return self._note(self.name, self.port, {fact[1].lower(): fact[2]})
        if line[0].isspace() or (fact and fact[1].lower() in _SET_ASIDE):
            self.known.add(number)
        else:
            self.name = None
        return False

    def _of_one_line(self, line: str) -> bool:
        """Take a line that is all of a port, or of a card."""
        if link := _LINK.match(line):
            self.tools["rdma link"] = None
            names = ("state", "phys_state", "interface")
            self._note(link[1], int(link[2]), dict(zip(names, link.groups()[2:], strict=True)))
        elif device := _DEVICE.match(line):
            self.tools["rdma dev"] = None
            self._note(device[1], None, {"fw_ver": device[2]})
        elif interface := _INTERFACE.match(line):
            self.tools["ibdev2netdev"] = None
            facts = {"interface": interface[3], "operstate": interface[4].lower()}
            self._note(interface[1], int(interface[2]), facts)
        else:
            return False
        return True

    def _note(self, name: str, port: int | None, facts: Mapping[str, str | None]) -> bool:
        """Note facts of a card or a port; False where none of them can be read."""
        card = self.cards.setdefault(name, _Card())
        noted = card.about if port is None else card.ports.setdefault(port, {})
        plain = [
            one for fact, value in facts.items() if value for one in _plain(_USED.get(fact, fact), value)
        ]
        for key, words in plain:
            if noted.setdefault(key, words) != words:
                where = name if port is None else f"port {port} of {name}"
                self.strange.append(f"{where} has {key.replace('_', ' ')} {noted[key]} and {words}")
        return bool(plain)


# Names of the facts that are used, by tool, to our own.
_USED = {
    **dict.fromkeys(_FIRMWARE, "firmware"),
    **dict.fromkeys(_GUID, "node_guid"),
    **dict.fromkeys(("physical state", "phys state", "phys_state"), "physical_state"),
    **dict.fromkeys(("link layer", "link_layer"), "link_layer"),
    "ca type": "hca_type",
    **{name: name for name in ("board_id", "state", "rate", "active_width", "active_speed")},
}
_SET_ASIDE = (
    "number of ports", "hardware version", "system image guid", "base lid", "lmc", "sm lid",
    "capability mask", "port guid", "default gid", "transport", "sys_image_guid", "vendor_id",
    "vendor_part_id", "hw_ver", "phys_port_cnt", "max_mtu", "active_mtu", "sm_lid", "port_lid", "port_lmc",
)  # fmt: skip


def recognise(text: str) -> bool:
    """Return whether the text has a line that begins a card, or is of a link."""
    return any(begins([line]) for line in text.splitlines())


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line begins a card, or is of a link."""
    line = lines[0]
    return _begun(line) is not None or any(form.match(line) for form in (_LINK, _DEVICE, _INTERFACE))


def claims(text: str) -> Claims:
    """Return the lines that are read, and those of the cards that are set aside."""
    scan = _scan(text)
    return Claims(scan.read, frozenset(scan.known))


def parse(text: str, *, origin: str) -> Machine:
    """Read the ports of each card. Raises InputError where two values of a card's fact are of two hosts."""
    scan = _scan(text)
    if scan.strange:
        raise InputError(f"{origin} is of several hosts, or of one at two times: {scan.strange[0]}", _HINT)
    source = " + ".join(scan.tools)
    missing = {at_nic(EVERY, "pci_address"): f"not reported by {source}"}
    nics = []
    for index, (name, card) in enumerate(scan.cards.items()):
        ports = []
        for place, (number, facts) in enumerate(sorted(card.ports.items())):
            ports.append(_port(place, name, number, facts))
            if ports[-1].up is False:
                missing[at_nic(index, item("ports", place, "rate_gbit_per_s"))] = "LINK_DOWN"
        nics.append(
            Nic(
                index=index,
                name=name,
                firmware_version=card.about.get("firmware"),
                psid=card.about.get("board_id"),
                hca_type=card.about.get("hca_type"),
                ports=tuple(ports) or None,
            )
        )
    return Machine(source=source, nics=tuple(nics), missing=missing)


def _scan(text: str) -> _Scan:
    scan = _Scan()
    scan.read = read_lines(text, scan.take, bare=str.rstrip).taken
    return scan


def _begun(line: str) -> tuple[str, str, int | None] | None:
    """Return the tool, the card and the port that a line begins, if any."""
    for tool, form in _CARDS.items():
        if found := form.match(line.strip()):
            return tool, found[1], int(found[2]) if form.groups > 1 else None
    return None


def _plain(key: str, value: str) -> Iterator[tuple[str, str]]:
    """Yield facts as the kernel writes them: `PORT_ACTIVE (4)`, `4: ACTIVE` and `Active` are ACTIVE."""
    if key == "state":
        word = re.sub(r"^\d+: |^PORT_| \(\d+\)$|\s", "", value).upper()
        if word in _STATES:
            yield key, _STATES[word]
    elif key == "physical_state":
        word = re.sub(r"^\d+: | \(\d+\)$|[_\s]", "", value).lower()
        yield from ((key, name) for name in _PHYS_STATES if name.replace(" ", "").lower().startswith(word))
    elif key == "node_guid":
        yield key, re.sub(r"^0x|[:\s]", "", value).lower()
    elif key in _NUMBERS:
        yield from _numbers(key, value)
    elif key != "link_layer" or value in ("InfiniBand", "Ethernet"):
        yield key, value


def _numbers(key: str, value: str) -> Iterator[tuple[str, str]]:
    found = _NUMBERS[key].match(value)
    if found is None:
        return
    if key == "active_width":
        yield "lanes", found[1]
        return
    yield key, f"{float(found[1]):g}"
    if key == "rate" and found[2]:
        yield "lanes", found[2]


def _port(place: int, name: str, number: int, facts: dict[str, str]) -> NicPort:
    is_up, layer = facts.get("state") == "ACTIVE", facts.get("link_layer")
    lanes = int(facts["lanes"]) if "lanes" in facts else None
    rate = float(facts["rate"]) if "rate" in facts else None
    if rate is None and lanes and "active_speed" in facts:
        rate = float(facts["active_speed"]) * lanes
    return NicPort(
        index=place,
        rdma_device=name,
        rdma_port=number,
        interface=facts.get("interface"),
        operstate=facts.get("operstate"),
        link_layer=layer,
        state=facts.get("state"),
        phys_state=facts.get("physical_state"),
        rate_gbit_per_s=rate if is_up else None,
        lanes=lanes if is_up and layer == "InfiniBand" else None,
    )


FORMAT = Format(
    "`ibstat`, `ibstatus`, `ibv_devinfo`, `rdma link` and `ibdev2netdev` text",
    "RDMA ports: state, rate, lanes, firmware",
    recognise,
    parse,
    begins=begins,
    claims=claims,
)
