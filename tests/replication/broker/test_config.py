"""The generated access list and configuration as texts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replication.broker import config as plan
from agent.replication.broker.config import BrokerPlan, PeerLink, TopologyError
from tests.replication.broker.zones import LINKS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plant-a",
        "plant-a:",
        ":idmz",
        "plant-a:idmz:enterprise",
        "Plant:idmz",
        "plant a:idmz",
        "plant/a:idmz",
        "+:idmz",
        "#:idmz",
        "plant-a:idmz\nuser enterprise",
        "plant-a:idmz\n",
        f"{'z' * 33}:idmz",
        "plänt:idmz",
        "plant-a:plant-a",
    ],
)
def test_parse_link_refuses(text: str) -> None:
    """A link that is not two different zones is refused, especially one that would add a second line to the list."""
    with pytest.raises(TopologyError):
        plan.parse_link(text)


def test_acl_text() -> None:
    """The access list is what a person would write: one block per zone, with only its peers."""
    acl = plan.render_acl([PeerLink("plant-a", "idmz")])
    assert [line for line in acl.splitlines() if line and not line.startswith("#")] == [
        "user idmz",
        "topic write bsfg/1/plant-a/idmz/req",
        "topic read bsfg/1/plant-a/idmz/rsp/+",
        "user plant-a",
        "topic write bsfg/1/plant-a/idmz/rsp/+",
        "topic read bsfg/1/plant-a/idmz/req",
    ]


_zones = st.sampled_from(["a", "b", "c", "plant-1", "idmz"])
_links = st.lists(st.builds(PeerLink, _zones, _zones).filter(lambda link: link.serving != link.asking), min_size=1)


@given(_links, st.randoms(use_true_random=False))
def test_acl_grants_the_links_and_nothing_else(links: list[PeerLink], random: Any) -> None:
    """For any topology and any order of its links, the text grants exactly four rights for each link, without pattern
    or deny."""
    acl = plan.render_acl(links)
    again = links * 2
    random.shuffle(again)
    assert plan.render_acl(again) == acl
    granted = set()
    user = ""
    for line in acl.splitlines():
        match line.split(" "):
            case ["user", user]:
                pass
            case ["topic", access, topic]:
                granted.add((user, access, topic))
            case _:
                assert line == "" or line.startswith("#"), line
    meant = set()
    for link in links:
        topic = f"bsfg/1/{link.serving}/{link.asking}"
        meant |= {(link.asking, "write", f"{topic}/req"), (link.serving, "read", f"{topic}/req")}
        meant |= {(link.serving, "write", f"{topic}/rsp/+"), (link.asking, "read", f"{topic}/rsp/+")}
    assert granted == meant


@pytest.mark.parametrize(
    "change",
    [
        {"links": ()},
        {"links": (PeerLink("a", "b\nuser c"),)},
        {"links": (PeerLink("a", "a"),)},
        {"links": tuple(PeerLink("a", f"b{number}") for number in range(plan.LINKS_MAX + 1))},
        {"folder": "relative"},
        {"folder": "/a\nallow_anonymous true"},
        {"folder": "/a "},
        {"folder": "/" + "a" * plan.PATH_CHARACTERS_MAX},
        {"host": "127.0.0.1\nlistener 1883"},
        {"host": "a b"},
        {"user": ""},
        {"user": "root\npersistence true"},
        {"port": 0},
        {"port": 65536},
        {"connections": 1},
        {"connections": 513},
        {"process": "../elsewhere"},
        {"process": "idmz.plant-a\nuser root"},
    ],
)
def test_config_refuses(change: dict[str, Any]) -> None:
    """Values out of range, or that could add a line, are refused."""
    with pytest.raises(TopologyError):
        plan.render_config(BrokerPlan(**{"links": LINKS, "folder": "/etc/mosquitto/bsfg", **change}))


@pytest.mark.parametrize(
    "line",
    [
        "set_tcp_nodelay true",
        "tls_version tlsv1.3",
        "require_certificate true",
        "use_identity_as_username true",
        "allow_anonymous false",
        "persistence false",
        "retain_available false",
        "crlfile /etc/mosquitto/bsfg/zones.crl",
        "acl_file /etc/mosquitto/bsfg/acl",
        "max_qos 1",
        "user mosquitto",
        "listener 8883",
    ],
)
def test_each_protective_setting_appears_once(line: str) -> None:
    """Each protective setting appears exactly once, and no setting appears twice, so that none overrides another."""
    config = plan.render_config(BrokerPlan(links=LINKS, folder="/etc/mosquitto/bsfg/"))
    settings = [each for each in config.splitlines() if each and not each.startswith("#")]
    assert settings.count(line) == 1
    names = [each.split(" ")[0] for each in settings if not each.startswith("log_type ")]
    assert len(names) == len(set(names))
