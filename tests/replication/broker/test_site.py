"""broker.toml: links are added and removed only by name, every pair of zones has a process, and the text is read back
as written."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agent.cli import bsfg
from agent.replication import pki
from agent.replication.broker.config import PeerLink, TopologyError
from agent.replication.broker.site import (
    BrokerSite,
    Process,
    changes,
    parse_sources,
    read_site,
    render_site,
    with_link,
    without_link,
)
from tests.replication.broker.zones import NOW, own_user

_zones = st.sampled_from(["plant-a", "plant-b", "idmz", "enterprise", "quality"])
_link = st.builds(PeerLink, _zones, _zones).filter(lambda link: link.serving != link.asking)
_steps = st.lists(st.tuples(_link, st.sampled_from([0, 0, 0, 8883, 9000])), min_size=1, max_size=12)


def _site(steps: list[tuple[PeerLink, int]]) -> BrokerSite:
    site = BrokerSite("idmz")
    for link, port in steps:
        try:
            site = with_link(site, link, port)
        except TopologyError as error:
            assert "remove it first" in str(error)  # noqa: PT017 one of two outcomes
    return site


def _links(site: BrokerSite) -> list[PeerLink]:
    return sorted(link for each in site.processes for link in each.links)


@given(_steps)
def test_every_link_is_carried_once_and_the_text_says_all(steps: list[tuple[PeerLink, int]]) -> None:
    """Exactly one process carries each link; ports and names are unique; what is written is read back equal."""
    site = _site(steps)
    assert _links(site) == sorted({link for link, _ in steps})
    for what in ("port", "name"):
        values = [getattr(each, what) for each in site.processes]
        assert len(values) == len(set(values))
    assert read_site(render_site(site)) == site


def test_the_files_are_where_the_site_says() -> None:
    """The configuration names the folder that the site names for the broker's machine; without one, the folder in which
    it is written. It has the site's port and number of connections."""
    process = Process(8883, (PeerLink("plant-a", "idmz"),), connections=7)
    for named, wanted in (("/etc/mosquitto/bsfg", "/etc/mosquitto/bsfg"), ("", "/here")):
        (plan,) = BrokerSite("b1", folder=named, processes=(process,)).plans("/here")
        assert (plan.folder, plan.port, plan.connections) == (wanted, 8883, 7)


@given(st.lists(_link, min_size=1))
def test_each_pair_of_zones_has_a_process_of_its_own(links: list[PeerLink]) -> None:
    """Without a port no process has more than two zones, and both directions of a pair share one."""
    site = _site([(link, 0) for link in links])
    pairs = [frozenset(each.zones) for each in site.processes]
    assert {len(pair) for pair in pairs} == {2}
    assert len(pairs) == len(set(pairs))


@given(_steps, st.data())
def test_removing_a_link_removes_that_link(steps: list[tuple[PeerLink, int]], data: st.DataObject) -> None:
    """The other links stay; the difference names the removed one; removing it again is refused by name."""
    site = _site(steps)
    link = data.draw(st.sampled_from(_links(site)))
    left = without_link(site, link)
    assert _links(left) == [each for each in _links(site) if each != link]
    removed = [line for line in changes(site, left) if line.startswith("- link")]
    assert len(removed) == 1
    assert f" {link.serving}:{link.asking} " in removed[0]
    assert [line for line in changes(site, left) if line.startswith("+")] == []
    with pytest.raises(TopologyError, match=f"{link.serving}:{link.asking} is not among the links"):
        without_link(left, link)


@pytest.mark.parametrize(
    "text,says",
    [
        ("broker = ", "broker.toml: "),
        ("nmae = 'x'", "unknown nmae"),
        ("host = 3", "host 3 is not of type str"),
        ("process = 3", "process 3 is not of type list"),
        ("[[process]]\nport = 1", "process 1: no links"),
        ("[[process]]\nlinks = ['a:b']", "port 0 is not in"),
        ("[[process]]\nport = true\nlinks = ['a:b']", "port True is not of type int"),
        ("[[process]]\nport = 1\nlinks = ['a']", "is not a link"),
        ("[[process]]\nport = 1\nlinks = [1]", "links is not a list of strings"),
        ("[[process]]\nport = 1\nlinks = ['a:b']\nsources = ['10.0.0.1/8']", "has host bits set"),
        ("[[process]]\nport = 1\nlinks = ['a:b']\nconnections = 1", "connections 1 is neither"),
        ("[[process]]\nport = 1\nlinks = ['a:b']\nname = '../x'", "name '../x'"),
        ("[[process]]\nport = 1\nlinks = ['a:b']\n[[process]]\nport = 1\nlinks = ['c:d']", "port 1 is used by more"),
        (
            "[[process]]\nport = 1\nlinks = ['a:b']\nname = 'x'\n[[process]]\nport = 2\nlinks = ['c:d']\nname = 'x'",
            "name x is used by more",
        ),
    ],
)
def test_a_file_that_cannot_be_used(text: str, says: str) -> None:
    """Each mistake in broker.toml is named with its place."""
    with pytest.raises(TopologyError, match=says):
        read_site(text)


def test_sources_are_networks() -> None:
    """Addresses become networks, duplicates vanish, and an unbounded list is refused."""
    assert parse_sources(["10.1.2.3", "10.1.2.3/32", "fd00::/8"]) == ("10.1.2.3/32", "fd00::/8")
    with pytest.raises(TopologyError, match="at most 256"):
        parse_sources(["10.0.0.0/8"] * 257)


@pytest.fixture
def site_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an authority, to work in."""
    pki.create_authority(tmp_path / "pki", NOW)
    pki.issue_broker(tmp_path / "pki", "idmz", ["localhost"], NOW)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _config(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(bsfg, ["broker", "config", "etc", *words])
    return result.exit_code, result.output


def test_a_new_link_leaves_the_others(site_folder: Path) -> None:
    """bsfg broker config with only a new link keeps the earlier links, prints the difference first, and removes a link
    and its files only on request. (When all links were options, missing ones were dropped silently.)"""
    code, said = _config("--name", "idmz", "--user", own_user(), "--link", "plant-a:idmz")
    assert (code, "+ link plant-a:idmz on port 8883" in said) == (0, True)
    code, said = _config("--link", "idmz:enterprise", "--source", "10.9.0.0/16")
    assert code == 0
    assert [line for line in said.splitlines() if line[0] in "+-"] == [
        "+ link idmz:enterprise on port 8884 (process enterprise.idmz)",
        "+ source 10.9.0.0/16 on port 8884 (process enterprise.idmz)",
    ]
    etc = site_folder / "etc"
    assert "user plant-a" in (etc / "idmz.plant-a/acl").read_text()
    assert "listener 8884" in (etc / "enterprise.idmz/mosquitto.conf").read_text()
    assert "8883" in (etc / "firewall.nft").read_text()

    before = {file: file.read_bytes() for file in etc.rglob("*") if file.is_file()}
    code, said = _config("--remove-link", "idmz:enterprise", "--dry-run")
    assert (code, "- link idmz:enterprise on port 8884" in said) == (0, True)
    assert {file: file.read_bytes() for file in etc.rglob("*") if file.is_file()} == before

    code, said = _config("--remove-link", "idmz:enterprise")
    assert (code, "disable --now bsfg-broker@enterprise.idmz" in said) == (0, True)
    assert not (etc / "enterprise.idmz").exists()
    assert "8884" not in (etc / "firewall.nft").read_text()
    code, said = _config("--json")
    assert [each["port"] for each in json.loads(said)["processes"]] == [8883]


@pytest.mark.parametrize(
    "words,says",
    [
        ((), "--name ''"),
        (("--name", "idmz"), "no links"),
        (("--name", "idmz", "--link", "plant-a:idmz", "--source", "nowhere"), "a source is an address"),
        (("--name", "idmz", "--remove-link", "plant-a:idmz"), "is not among the links"),
        (("--name", "idmz", "--link", "plant-a:idmz", "--user", "root\nlistener 1"), "cannot stand in one line"),
    ],
)
def test_wrong_usage_writes_nothing(site_folder: Path, words: tuple[str, ...], says: str) -> None:
    """Each mistake is named, and no file is written."""
    result = CliRunner().invoke(bsfg, ["broker", "config", "etc", *words])
    assert result.exit_code != 0
    assert says in result.output + str(result.exception)
    assert not (site_folder / "etc").exists()


def test_two_pairs_on_one_port_share_a_process() -> None:
    """An operator who can open only one port names it; both pairs are then in one process, which is recorded."""
    site = with_link(with_link(BrokerSite("idmz"), PeerLink("plant-a", "idmz")), PeerLink("plant-b", "idmz"), 8883)
    shared = Process(8883, (PeerLink("plant-a", "idmz"), PeerLink("plant-b", "idmz")), name="idmz.plant-a")
    assert site.processes == (shared,)


def test_a_link_does_not_move_silently() -> None:
    """A link that is on one port is not put on another port too."""
    site = with_link(BrokerSite("idmz"), PeerLink("plant-a", "idmz"))
    wrong: dict[str, Any] = {"link": PeerLink("plant-a", "idmz"), "port": 9000}
    with pytest.raises(TopologyError, match="remove it first"):
        with_link(site, **wrong)
