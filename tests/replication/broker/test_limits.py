"""The limits of a broker process: for every topology they stay below its memory limit and leave room for each zone."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replication.broker.config import BrokerPlan, PeerLink, TopologyError, limits_for, render_config, zones_of
from agent.replication.broker.config_lint import check_memory, parse_config
from agent.replication.broker.limits import CONNECTIONS_PER_ZONE, MEMORY_BYTES_MAX

ONE_LINK = [PeerLink("plant-a", "idmz")]
MIB = 1024 * 1024

_zones = st.sampled_from([f"zone-{number}" for number in range(8)])
_links = st.lists(
    st.builds(PeerLink, _zones, _zones).filter(lambda link: link.serving != link.asking), min_size=1, max_size=24
)


def _settings(links: list[PeerLink], connections: int = 0) -> dict[str, str]:
    return parse_config(render_config(BrokerPlan(tuple(links), "/etc/mosquitto/bsfg", connections=connections)))


@given(_links, st.one_of(st.just(0), st.integers(2, 512)))
def test_no_configuration_lets_its_clients_reach_the_memory_limit(links: list[PeerLink], connections: int) -> None:
    """For any links and number of connections, connections times queue times packet, computed here from the text alone,
    is below the memory limit; or the configuration is refused because it needs too much."""
    try:
        settings = _settings(links, connections)
    except TopologyError as error:  # it would need too much
        assert "give the links ports of their own" in str(error)  # noqa: PT017 one of two outcomes
        return
    sizes = {name: int(value) for name, value in settings.items() if value.isdigit()}
    held_at_qos_1 = sizes["max_inflight_bytes"] + sizes["max_queued_bytes"] + 2 * sizes["max_packet_size"]
    # In its queue, being written, being read, and stored once more.
    at_qos_0 = (sizes["max_queued_messages"] + 3) * sizes["max_packet_size"]
    assert sizes["max_connections"] * (at_qos_0 + held_at_qos_1) < sizes["memory_limit"] <= MEMORY_BYTES_MAX
    assert [result.is_bad for result in check_memory(settings)] == [False]


@given(_links)
def test_there_is_room_for_every_zone(links: list[PeerLink]) -> None:
    """Each zone has room for its node, a second identity, commands and tasks, and for the pages of all links of the
    busiest zone. One source address cannot take all connections."""
    try:
        limits = limits_for(links)
    except TopologyError:
        assert len(zones_of(links)) > 4
        return
    assert limits.connections >= CONNECTIONS_PER_ZONE * len(zones_of(links))
    busiest = max(sum(zone in (link.serving, link.asking) for link in set(links)) for zone in zones_of(links))
    assert limits.queued_messages == 8 + 8 * busiest or limits.memory_bytes > MEMORY_BYTES_MAX - 64 * MIB
    assert limits.queued_messages >= 16
    assert CONNECTIONS_PER_ZONE <= limits.connections_per_source <= limits.connections - 4


def test_the_smallest_site() -> None:
    """Two zones with one link have the figures that the unit file and the docs name."""
    limits = limits_for(ONE_LINK)
    assert (limits.connections, limits.connections_per_source, limits.queued_messages) == (12, 8, 16)
    assert (limits.heap_bytes // MIB, limits.memory_bytes // MIB) == (276, 320)
    assert limits.files == 24


@pytest.mark.parametrize(
    "change,says",
    [
        ({"max_connections": "64"}, "honest clients would be disconnected"),
        ({"max_queued_messages": "200"}, "honest clients would be disconnected"),
        ({"memory_limit": "201326592"}, "honest clients would be disconnected"),
        ({"max_queued_messages": ""}, "max_queued_messages: not set"),
        ({"max_packet_size": "0", "memory_limit": "x"}, "memory_limit, max_packet_size: not set"),
    ],
)
def test_a_configuration_changed_by_hand(change: dict[str, str], says: str) -> None:
    """The check of a broker's files names limits that do not fit together, or are missing."""
    (result,) = check_memory({**_settings(ONE_LINK), **change})
    assert result.is_bad
    assert re.search(says, result.what)
