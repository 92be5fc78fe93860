"""[pair] of node.toml: partner and witness are two peers, and the partner has our zone."""

from dataclasses import replace

import pytest

from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.pair import PairSettings
from agent.settings.peers import PeerSettings

PARTNER = PeerSettings("plant-a", "pair", pulls=("facts.telemetry",), node="plant-a-2")
WITNESS = PeerSettings("idmz", "idmz", exports=("facts.telemetry",))
GOOD = NodeSettings(
    IdentitySettings("plant-a"), peer=(PARTNER, WITNESS), pair=PairSettings(partner="plant-a-2", witness="idmz")
)
CASES = {
    "no peer": (replace(GOOD, peer=(WITNESS,)), "pair.partner"),
    "a witness that is no peer": (replace(GOOD, peer=(PARTNER,)), "pair.witness"),
    "a partner of another zone": (replace(GOOD, pair=PairSettings("idmz", "plant-a-2")), "pair.partner"),
}


@pytest.mark.parametrize("name", CASES)
def test_nodes_of_a_pair_are_peers(name: str) -> None:
    """What the two nodes cannot be asked over, or what records elsewhere, is named."""
    settings, path = CASES[name]
    assert path in {found for found, _ in settings.problems()}


def test_a_pair_that_is_right() -> None:
    """Both nodes are asked."""
    assert not [found for found, _ in GOOD.problems() if found.startswith("pair")]
    assert GOOD.pair.nodes == ("plant-a-2", "idmz")


@pytest.mark.parametrize(
    "pair, field",
    [
        (PairSettings("Plant"), "partner"),
        (PairSettings("", "idmz"), "witness"),
        (PairSettings("plant-b", "plant-b"), "witness"),
    ],
)
def test_a_pair_that_cannot_be(pair: PairSettings, field: str) -> None:
    """Names are those of nodes, and a witness is a third one."""
    assert field in {found for found, _ in pair.problems()}
