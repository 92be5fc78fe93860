"""node.toml: all problems at once, each with path, value and reason; and a sample file that agrees with the code."""

import dataclasses
import os
import re
import threading
import tomllib
import tracemalloc
import typing
from pathlib import Path

import pytest

from agent.cli.prepare.init import node_toml
from agent.config import ConfigError, ConfigFile, load, read
from agent.config.node_file import FILE_BYTES_MAX
from agent.settings.node import IdentitySettings, NodeSettings, PageSettings
from agent.settings.notify import NotifySettings
from agent.settings.pair import PairSettings
from agent.settings.peers import STREAMS_MAX, BrokerSettings, PeerSettings
from agent.settings.signing import PINS_MAX, OriginSettings, SigningSettings
from agent.settings.sources import ModbusSourceSettings, OpcuaSourceSettings
from agent.settings.store import StoreSettings, StreamSettings

SECTIONS = {
    "node": IdentitySettings,
    "store": StoreSettings,
    "stream": StreamSettings,
    "page": PageSettings,
    "notify": NotifySettings,
    "broker": BrokerSettings,
    "peer": PeerSettings,
    "pair": PairSettings,
    "signing": SigningSettings,
    "origin": OriginSettings,
    "opcua": OpcuaSourceSettings,
    "modbus": ModbusSourceSettings,
}
FILE = Path("/etc/bsfg/node.toml")
BROKER = {"name": "b", "host": "h", "ca_file": "ca.pem", "cert_file": "c.pem", "key_file": "k.pem"}


def problems_of(table: dict[str, object], file: Path = FILE) -> dict[str, str]:
    """Path -> why, of a configuration that must be refused."""
    with pytest.raises(ConfigError) as caught:
        read(table, file)
    return {problem.path: problem.why for problem in caught.value.problems}


def sample_sections() -> dict[str, dict[str, str]]:
    """The sample file as section -> {setting: text of its value}, commented or not."""
    sections: dict[str, dict[str, str]] = {}
    current = ""
    for line in node_toml("plant-a").splitlines():
        if found := re.fullmatch(r"(?:# )?\[\[?([a-z]+)\]\]?", line):
            current = found[1]
            sections[current] = {}
        elif found := re.fullmatch(r"(?:# )?([a-z_0-9]+) = (.+)", line):
            sections[current][found[1]] = found[2]
        else:
            assert not line or line.startswith("##"), f"neither prose nor a setting: {line!r}"
    return sections


def test_the_sample_shows_every_setting() -> None:
    """An operator finds every setting of every section in the file `bsfg init` writes, and nothing that does not
    exist."""
    assert set(typing.get_type_hints(NodeSettings)) == set(SECTIONS)
    shown = {section: set(settings) for section, settings in sample_sections().items()}
    known = {section: {field.name for field in dataclasses.fields(kind)} for section, kind in SECTIONS.items()}
    assert shown == known


def test_the_sample_shows_the_defaults() -> None:
    """Each `# key = value` of a setting that has a plain default shows exactly that default."""
    wrong = []
    for section, settings in sample_sections().items():
        for field in dataclasses.fields(SECTIONS[section]):
            if field.default is dataclasses.MISSING or field.default is None:
                continue
            said = tomllib.loads(f"value = {settings[field.name]}")["value"]
            default = str(field.default) if isinstance(field.default, Path) else field.default
            default = list(default) if isinstance(default, tuple) else default
            if said != default and field.name not in {"security_policy", "security_mode", "host"}:
                wrong.append((section, field.name, said, default))
    assert wrong == []


def test_every_commented_line_is_valid(tmp_path: Path) -> None:
    """With every setting of the sample uncommented, the only problems are those that its prose names."""
    text = re.sub(r"(?m)^# ", "", node_toml("plant-a"))
    assert set(problems_of(tomllib.loads(text), tmp_path / "node.toml")) == {
        *("peer[0].zone", "opcua[0].user_name"),  # no streams named; a password without a user
        *("modbus[0].ca_file", "modbus[0].cert_file"),  # for tls only
        *("notify[0].webhook_url", "notify[0].smtp_user"),  # neither webhook nor mail; a password without a user
    }


def test_all_problems_are_reported_together() -> None:
    """Nine mistakes in five sections are nine lines: neither a wrong type nor a misspelt name hides another broken
    rule."""
    found = problems_of(
        {
            "node": {"zone": "Plant A", "stat_dir": "x"},
            "store": {"commit_interval_ms": -5, "batch_facts_target": "x"},
            "broker": [{**BROKER, "host": "", "optional": 1}],
            "peer": [{"zone": "idmz", "broker": "nope", "pulls": ["facts.*"]}],
            "modbus": [{"name": "m", "host": "h", "tags_file": "t.csv", "address_base": 7, "port": "502"}],
        }
    )
    assert set(found) == {
        "node.zone", "node.stat_dir", "store.commit_interval_ms", "store.batch_facts_target", "broker[0].host",
        "broker[0].optional", "peer[0].pulls", "modbus[0].address_base", "modbus[0].port",
    }  # fmt: skip
    assert "did you mean state_dir?" in found["node.stat_dir"]
    assert "not a stream name" in found["peer[0].pulls"]
    assert found["modbus[0].address_base"].startswith("must be 0")


A = {"node": {"zone": "a"}}


def peered(**peer: object) -> dict[str, object]:
    """A node with one peer."""
    return {**A, "broker": [BROKER], "peer": [{"zone": "c", "broker": "b", "pulls": ["s"], **peer}]}


def _peers(**peer: object) -> list[object]:
    found = peered(**peer)["peer"]
    assert isinstance(found, list)
    return found


def test_two_nodes_of_a_zone() -> None:
    """A node and its peers are named like their zones, unless they have a name: two nodes of one zone are two peers,
    and one of our own zone is our partner."""
    settings = read(peered(), FILE)
    assert (settings.node.name, settings.peer[0].node, settings.peer[0].origins) == ("a", "c", {"c"})
    peers = [*_peers(), *_peers(node="c-2", relays=["e"]), *_peers(zone="a")]
    pair = read({**peered(), "node": {"zone": "a", "name": "a-2"}, "peer": peers}, FILE)
    assert (pair.node.zone, pair.node.name) == ("a", "a-2")
    assert [(peer.zone, peer.node) for peer in pair.peer] == [("c", "c"), ("c", "c-2"), ("a", "a")]
    assert pair.peer[1].origins == {"c", "c-2", "e"}


OPCUA = {"name": "plc", "url": "opc.tcp://h", "tags_file": "t"}
MISTAKES: list[tuple[dict[str, object], str, str]] = [
    ({}, "node", "is required"),
    ({"node": {}}, "node.zone", "is required"),
    ({"node": {"zone": 5}}, "node.zone", "must be text"),
    ({"node": []}, "node", "must be a table"),
    ({"node": {"zone": "a" * 33}}, "node.zone", "1 to 32"),
    ({"node": {"zone": "a", "state_dir": "/" + "ü" * 250}}, "node.state_dir", "more than 480 bytes"),
    ({**A, "broker": {}}, "broker", "must be a list"),
    ({**A, "broker": [{**BROKER, "port": 0}]}, "broker[0].port", "1 to 65535"),
    ({**A, "broker": [BROKER, BROKER]}, "broker[1].name", "names must differ"),
    ({**A, "broker": [{**BROKER, "optional": 1}]}, "broker[0].optional", "true or false"),
    ({**A, "page": {"listen_port": 70_000}}, "page.listen_port", "1 to 65535"),
    ({**A, "page": {"listen_host": ""}}, "page.listen_host", "other machines reach this address"),
    ({**A, "storage": {}}, "storage", "did you mean store?"),
    (peered(broker="x"), "peer[0].broker", "no [[broker]] is named"),
    ({**peered(broker="x"), "node": {"zone": "A"}}, "peer[0].broker", "no [[broker]] is named"),
    (peered(pulls="s", health=False), "peer[0].pulls", "must be a list"),
    ({"node": {"zone": "a", "name": "A 2"}}, "node.name", "must equal the CN"),
    ({"node": {"zone": "a", "name": "local"}}, "node.name", "no zone is called 'local'"),
    (peered(zone="a"), "peer[0].zone", "our own name"),
    ({**peered(zone="a", node="a-2"), "node": {"zone": "a", "name": "a-2"}}, "peer[0].node", "our own name"),
    (peered(node="a"), "peer[0].node", "'a' is another zone"),
    (peered(node="C 2"), "peer[0].node", "is not a zone"),
    (peered(node="local"), "peer[0].node", "no zone is called 'local'"),
    ({**peered(), "node": {"zone": "b", "name": "c"}}, "node.name", "'c' is another zone"),
    ({**peered(), "peer": [*_peers(zone="d", node="c"), *_peers()]}, "peer[0].node", "'c' is another zone"),
    (peered(zone="local"), "peer[0].zone", "no zone is called 'local'"),
    (peered(relays=["a"]), "peer[0].relays", "never taken back"),
    (peered(bytes_per_second_max=9600), "peer[0].bytes_per_second_max", "0 for no limit, or at least 16,384"),
    (
        peered(pulls=[], exports=["s"], health=False, bytes_per_second_max=100_000),
        *("peer[0].bytes_per_second_max", "set it where the facts are pulled"),
    ),
    (peered(relays=["a-2"], node="c-2") | {"node": {"zone": "a", "name": "a-2"}}, "peer[0].relays", "never taken back"),
    ({**peered(), "peer": _peers() * 2}, "peer[1].zone", "names must differ"),
    ({**peered(), "peer": _peers(node="c-2") * 2}, "peer[1].node", "names must differ"),
    ({**A, "origin": [{"zone": "b", "signatures": "required"}]}, "origin[0].signatures", "nothing could be accepted"),
    ({**A, "origin": [{"zone": "b"}, {"zone": "b"}]}, "origin[1].zone", "names must differ"),
    ({**A, "origin": [{"zone": "b", "signatures": "off", "pinned": ["0" * 64]}]}, "origin[0].pinned", "has no effect"),
    (
        {**A, "origin": [{"zone": "b", "pinned": [f"{n:064x}" for n in range(PINS_MAX + 1)]}]},
        *("origin[0].pinned", "at most 16 certificates"),
    ),
    ({**A, "opcua": [{**OPCUA, "security_mode": "x"}]}, "opcua[0].security_mode", "must be one of"),
    (
        {**A, "opcua": [OPCUA], "modbus": [{"name": "plc", "host": "h", "tags_file": "u", "address_base": 0}]},
        *("modbus[0].name", "'plc' is also opcua[0].name"),
    ),
]


@pytest.mark.parametrize("table, path, why", MISTAKES)
def test_each_mistake_is_named(table: dict[str, object], path: str, why: str) -> None:
    """A wrong entry is reported under its path, with a reason an operator can act on, and under no other one of its
    section; whatever is wrong in another section."""
    found, section = problems_of(table), path.partition(".")[0]
    assert why in found[path]
    assert [name for name in found if name.partition(".")[0] == section] == [path]


@pytest.mark.parametrize(
    "content, why",
    [
        (None, "does not exist"),
        (b"[node", "is not TOML"),
        (b"[signing]\n[signing]\n", "twice.*; move the lines into the section that exists"),
        (b"\xff\xfe", "line 1 is not UTF-8"),
    ],
)
def test_an_unreadable_file_is_reported(tmp_path: Path, content: bytes | None, why: str) -> None:
    """A missing, broken or non-text file is one clear problem, not a traceback."""
    file = tmp_path / "node.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=why):
        load(file)


def test_a_file_of_gigabytes_is_not_read_whole(tmp_path: Path) -> None:
    """One that was copied there by mistake would take the memory of the machine: node.toml, and a tag file that it
    names."""
    path, tags_file = tmp_path / "node.toml", tmp_path / "m.csv"
    path.write_text('[node]\nzone = "a"\n[[modbus]]\nname = "m"\nhost = "h"\ntags_file = "m.csv"\naddress_base = 0\n')
    tags_file.touch()
    file = ConfigFile(path)
    file.load()
    for large in (tags_file, path):
        os.truncate(large, 2**30)
        tracemalloc.start()
        assert file.is_unread()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 3 * FILE_BYTES_MAX
    with pytest.raises(ConfigError, match="is larger than 16777216 bytes"):
        load(path)


@pytest.mark.parametrize(
    "section",
    [
        {"opcua": [{**OPCUA, "password": "hunter2"}]},
        {"opcua": [{**OPCUA, "url": "opc.tcp://op:hunter2@plc:4840"}]},
        {"notify": [{"name": "n", "webhook_url": "hooks.example/hunter2"}]},
        {"notify": {"name": "n", "webhook_url": "https://hooks.example/hunter2"}},
        {"opcuaa": [{**OPCUA, "user": {"Password": "hunter2"}}]},
        {"secrets": ["hunter2"]},
    ],
)
def test_no_problem_has_a_secret(section: dict[str, object]) -> None:
    """A password in the wrong place is not printed: a problem goes to the log, and with the health of the node to other
    zones and to receivers of notices."""
    with pytest.raises(ConfigError) as refused:
        read({**A, **section}, FILE)
    assert "(hidden)" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_path_is_shown_as_text(tmp_path: Path) -> None:
    """A problem of a path names it without the name of a Python class."""
    with pytest.raises(ConfigError, match=r"signing\.key_file = '/x/plant-a\.key': has no certificate_file"):
        read({"node": {"zone": "plant-a"}, "signing": {"key_file": "/x/plant-a.key"}}, tmp_path / "node.toml")


def test_origins_that_are_accepted() -> None:
    """Required signatures with pinned certificates, as many as there may be, or with a facts authority."""
    required = {"zone": "b", "signatures": "required"}
    pinned = {**required, "pinned": [f"{number:064x}" for number in range(PINS_MAX)]}
    assert len(read({"node": {"zone": "a"}, "origin": [pinned]}, FILE).origin[0].pins) == PINS_MAX
    trusting = {"node": {"zone": "a"}, "signing": {"facts_ca_file": "ca.pem"}, "origin": [required]}
    assert read(trusting, FILE).origin[0].signatures == "required"


def test_rules_of_streams() -> None:
    """A strong stream without in-sync consumers to wait for, a local one that waits for some, one kept longer than its
    time to live, a local one that a peer may fetch, and two of one name are problems."""
    alone = [{"name": "facts.audit", "write_class": "strong"}, {"name": "facts.b", "keep_hours": 200, "bytes_max": 5}]
    found = problems_of({"node": {"zone": "p"}, "stream": alone})
    assert set(found) == {"stream[0].acks", "stream[1].keep_hours", "stream[1].bytes_max"}
    found = problems_of({"node": {"zone": "p"}, "stream": [{"name": "facts.a", "write_class": "local", "acks": "all"}]})
    assert set(found) == {"stream[0].acks"}
    together = [{"name": "facts.private", "write_class": "local"}, {"name": "facts.b"}, {"name": "facts.b"}]
    peers = [{"zone": "idmz", "broker": "b", "exports": ["facts.private"]}]
    found = problems_of({"node": {"zone": "p"}, "stream": together, "broker": [BROKER], "peer": peers})
    assert set(found) == {"stream[2].name", "peer[0].exports"}


def test_a_peer_may_only_append_or_only_be_asked() -> None:
    """A peer without any exchange, or with more streams than may wait at it, is a problem; one that only appends, or
    that only commands send requests to, is none."""
    table = {"node": {"zone": "p"}, "stream": [{"name": "facts.private", "write_class": "local"}], "broker": [BROKER]}
    idle = {"zone": "idmz", "broker": "b", "health": False}
    assert set(problems_of({**table, "peer": [idle]})) == {"peer[0].zone"}
    assert set(problems_of({**table, "peer": [{**idle, "appends": ["Facts"]}]})) == {"peer[0].appends"}
    many = [f"facts.s{n}" for n in range(STREAMS_MAX + 1)]
    assert "33 streams, at most 32" in problems_of({**table, "peer": [{**idle, "pulls": many}]})["peer[0].pulls"]
    assert len(read({**table, "peer": [{**idle, "pulls": many[1:]}]}, FILE).peer[0].pulls) == STREAMS_MAX
    for some in ({"appends": ["facts.private"]}, {"asks": True}):
        assert read({**table, "peer": [{**idle, **some}]}, FILE).peer[0].exports == ()


def test_where_pulls_begin() -> None:
    """Each pull may begin at another place; a stream that is not pulled, or named twice, is a problem."""
    peer = {"zone": "idmz", "broker": "b", "health": False, "pulls": ["facts.a", "facts.b"]}
    table = {"node": {"zone": "p"}, "broker": [BROKER]}
    start = [{"stream": "facts.b", "at": "latest"}]
    (found,) = read({**table, "peer": [{**peer, "start": start}]}, FILE).peer
    assert [found.start_of(stream) for stream in found.pulls] == ["oldest", "latest"]
    for wrong in ([{"stream": "facts.c", "at": "end"}], start * 2):
        assert set(problems_of({**table, "peer": [{**peer, "start": wrong}]})) == {"peer[0].start"}
    found_wrong = problems_of({**table, "peer": [{**peer, "start": [{"stream": "facts.a", "at": "newest"}]}]})
    assert set(found_wrong) == {"peer[0].start[0].at"}


PROFILE = {"name": "m", "host": "h", "tags_file": "t.csv"}


def test_a_device_profile_gives_defaults(tmp_path: Path) -> None:
    """What node.toml sets wins over the profile, and what neither sets is the default of the program."""
    (tmp_path / "devices.d").mkdir()
    (tmp_path / "devices.d" / "meter.toml").write_text(
        'description = "a meter"\naddress_base = 1\ntimeout_ms = 300\nregisters_per_read_max = 80\n'
    )
    table = {"node": {"zone": "plant-a"}, "modbus": [{**PROFILE, "device": "meter", "timeout_ms": 700}]}
    (source,) = read(table, tmp_path / "node.toml").modbus
    assert (source.address_base, source.timeout_ms, source.registers_per_read_max, source.hole_max) == (1, 700, 80, 16)
    table["modbus"] = [{**PROFILE, "device": "devices.d/meter.toml"}]
    assert read(table, tmp_path / "node.toml").modbus[0].timeout_ms == 300


def test_problems_of_a_device_profile_name_file_and_key(tmp_path: Path) -> None:
    """An unknown key, a wrong type, a value out of its range, and a profile that is not there: each with its place."""
    (tmp_path / "devices.d").mkdir()
    file = tmp_path / "devices.d" / "meter.toml"
    file.write_text('description = "x"\naddress_base = 1\ntimeout = 3\nhole_max = "9"\nregisters_per_read_max = 900\n')

    def found(device: str) -> dict[str, str]:
        return problems_of({**A, "modbus": [{**PROFILE, "device": device}]}, tmp_path / "node.toml")

    problems = found("meter")
    assert set(problems) == {f"{file}: timeout", f"{file}: hole_max", f"{file}: registers_per_read_max"}
    assert "did you mean timeout_ms?" in problems[f"{file}: timeout"]
    file.write_text('description = "x"\naddress_base = 1\nregisters_per_read_max = 900\n')
    assert set(found("meter")) == {f"{file}: registers_per_read_max"}
    assert "did you mean meter?" in found("metre")["modbus[0].device"]
    assert "cannot be read" in found("me\0ter")["modbus[0].device"]


def test_the_device_profiles_of_this_repository_load(tmp_path: Path) -> None:
    """Each file in hardware/devices is a profile that a source can name."""
    files = sorted((Path(__file__).parents[2] / "hardware" / "devices").glob("*.toml"))
    assert files
    for file in files:
        table = {"node": {"zone": "plant-a"}, "modbus": [{**PROFILE, "device": str(file)}]}
        (source,) = read(table, tmp_path / "node.toml").modbus
        assert source.address_base in (0, 1, 40_001)


def test_a_file_that_was_refused_is_not_read_again_until_it_changes(tmp_path: Path) -> None:
    """Each content counts as read once, as used only if it is right: at a start whatever its problems, at a reload
    without any."""
    good, wrong = '[node]\nzone = "a"\n', '[node]\nzone = "a"\n[stroe]\n'
    path = tmp_path / "node.toml"
    path.write_text(wrong)
    file = ConfigFile(path)
    assert file.load_sections().problems
    assert (file.is_changed(), file.is_unread()) == (False, False)
    for turn in range(2):
        path.write_text(f"{wrong}# {turn}\n")
        assert (file.is_changed(), file.is_unread()) == (True, True)
        with pytest.raises(ConfigError):
            file.load()
        assert (file.is_changed(), file.is_unread()) == (True, False)
    path.write_text(good)
    assert file.is_unread()
    assert file.load().node.zone == "a"
    assert (file.is_changed(), file.is_unread()) == (False, False)


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """A shell gives one: `--config <(sops -d node.toml)`. A second read would find nothing; that of a tag file waits
    for ever."""
    path, source = tmp_path / "node.toml", 'name = "m"\nhost = "h"\ntags_file = "pipe.csv"\naddress_base = 0\n'
    for pipe in (path, tmp_path / "pipe.csv"):
        os.mkfifo(pipe)
    writer = threading.Thread(target=path.write_text, args=[f'[node]\nzone = "a"\n[[modbus]]\n{source}'], daemon=True)
    writer.start()
    assert ConfigFile(path).load().node.zone == "a"
    writer.join()


def test_a_file_counts_as_unread_when_a_file_that_it_names_has_changed(tmp_path: Path) -> None:
    """A node that started without a part, because of a device profile or a tag file, needs no edit of node.toml once
    these are right. Each content counts once, also where a profile cannot exist."""
    path, profile = tmp_path / "node.toml", tmp_path / "pa.toml"
    section = '[[modbus]]\nname = "{}"\nhost = "h"\ntags_file = "{}.csv"\naddress_base = 0\n'
    odd = section.format("odd", "odd") + 'device = "\\u0000"\n'
    path.write_text('[node]\nzone = "a"\n' + section.format("m", "m") + 'device = "pa.toml"\n' + odd)
    file = ConfigFile(path)
    assert len(file.load_sections().problems) == 2
    changes = (
        (profile, 'description = "d"\n'),
        (tmp_path / "m.csv", "tag\n"),
        (path, path.read_text().replace(odd, "")),
    )
    for changed, text in changes:
        assert not file.is_unread()
        changed.write_text(text)
        assert file.is_unread()
        assert bool(file.load_sections().problems) is (changed is not path)
    assert not file.is_unread()


def test_the_file_of_a_second_gateway(tmp_path: Path) -> None:
    """A node with a name of its own has it in the file, and its certificate is the one of that name."""
    text = node_toml("plant-a", name="plant-a-2")
    file = tmp_path / "node.toml"
    file.write_text(text)
    assert (load(file).node.zone, load(file).node.name) == ("plant-a", "plant-a-2")
    assert "pki/zones/plant-a-2.pem" in text
