"""The generated rights and configuration as texts."""

import json
from collections.abc import Callable
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


_zones = st.sampled_from(["a", "b", "c", "plant-1", "idmz"])
_links = st.lists(st.builds(PeerLink, _zones, _zones).filter(lambda link: link.serving != link.asking), min_size=1)
SLOTS = "0123456789abcdef"


@given(_links, st.randoms(use_true_random=False))
def test_rights_are_those_of_the_links_and_nothing_else(links: list[PeerLink], random: Any) -> None:
    """For any topology and any order of its links, each zone may publish what its links say, and subscribe, letter by
    letter, to its requests and to its answers in sixteen slots. All else is denied, and the links can be read back."""
    text = plan.render_rights(links)
    again = links * 2
    random.shuffle(again)
    assert plan.render_rights(again) == text
    assert plan.read_rights(text) == (tuple(sorted(set(links))), ())
    found = json.loads(text)
    assert (found["defaultACLAccess"]["publishClientSend"], found["defaultACLAccess"]["subscribe"]) == (False, False)
    roles = {role["rolename"]: role["acls"] for role in found["roles"]}
    granted = {
        (client["username"], rule["acltype"], rule["topic"])
        for client in found["clients"]
        for role in client["roles"]
        for rule in roles[role["rolename"]]
    }
    meant = set()
    for serving, asking in {(link.serving, link.asking) for link in links}:
        meant |= {
            (asking, "publishClientSend", f"bsfg/1/{serving}/{asking}/req"),
            (serving, "publishClientSend", f"bsfg/1/{serving}/{asking}/rsp/+/+"),
            (serving, "subscribeLiteral", f"bsfg/1/{serving}/+/req"),
            *((asking, "subscribeLiteral", f"bsfg/1/+/{asking}/rsp/{slot}/+") for slot in SLOTS),
        }
    assert granted == meant
    assert all(rule["allow"] for rules in roles.values() for rule in rules)


@given(_links, st.sets(_zones))
def test_a_denied_zone_has_no_role(links: list[PeerLink], denied: set[str]) -> None:
    """Denied zones are clients without a role; their links stay, and both can be read back."""
    known = denied & set(plan.nodes_of(links))
    text = plan.render_rights(links, denied)
    assert {client["username"] for client in json.loads(text)["clients"] if not client["roles"]} == known
    assert plan.read_rights(text) == (tuple(sorted(set(links))), tuple(sorted(known)))


@pytest.mark.parametrize(
    "spoil,says",
    [
        (lambda _: "", "is damaged"),
        (lambda _: "[]", "is damaged"),
        (lambda text: text.replace('"roles"', '"rules"'), "is damaged"),
        (lambda text: text.replace('"allow": true', '"allow": false', 1), "changed by hand"),
        (lambda text: text.replace("subscribeLiteral", "subscribePattern", 1), "changed by hand"),
        (lambda text: text.replace("bsfg/1/plant-a/+/req", "#"), "changed by hand"),
    ],
)
def test_rights_that_are_not_ours(spoil: Callable[[str], str], says: str) -> None:
    """A file that was damaged or changed is named, and not taken for a list of links."""
    with pytest.raises(TopologyError, match=says):
        plan.read_rights(spoil(plan.render_rights(LINKS)))


def test_a_list_without_end_is_refused() -> None:
    """More links than any site has are a script's mistake."""
    with pytest.raises(TopologyError, match="at most 8192"):
        plan.render_rights([PeerLink("a", f"b{number}") for number in range(plan.LINKS_MAX + 1)])


@pytest.mark.parametrize(
    "change",
    [
        {"folder": "relative"},
        {"folder": "/a\nallow_anonymous true"},
        {"folder": "/a "},
        {"folder": "/" + "a" * plan.PATH_CHARACTERS_MAX},
        {"plugin": "plugin.so"},
        {"plugin": "/a\nlistener 1883"},
        {"host": "127.0.0.1\nlistener 1883"},
        {"host": "a b"},
        {"user": ""},
        {"user": "root\npersistence true"},
        {"port": 0},
        {"port": 65536},
    ],
)
def test_config_refuses(change: dict[str, Any]) -> None:
    """Values out of range, or that could add a line, are refused."""
    with pytest.raises(TopologyError):
        plan.render_config(BrokerPlan(**{"folder": "/etc/mosquitto/bsfg/idmz", "plugin": "/p.so", **change}))


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
        "crlfile /etc/mosquitto/bsfg/idmz/zones.crl",
        "plugin /usr/lib/p.so",
        "plugin_opt_config_file /etc/mosquitto/bsfg/idmz/rights.json",
        "max_qos 1",
        "user mosquitto",
        "listener 8883",
    ],
)
def test_each_protective_setting_appears_once(line: str) -> None:
    """Each protective setting appears exactly once, and no setting appears twice, so that none overrides another."""
    config = plan.render_config(BrokerPlan("/etc/mosquitto/bsfg/idmz/", "/usr/lib/p.so"))
    settings = [kept for kept in config.splitlines() if kept and not kept.startswith("#")]
    assert settings.count(line) == 1
    names = [setting.split(" ")[0] for setting in settings if not setting.startswith("log_type ")]
    assert len(names) == len(set(names))
