from uuid import UUID

import pytest

from agent.settings.opcua_address import STANDARD_URI, NodeAddress, parse_node_address


@pytest.mark.parametrize(
    "text, address",
    [
        ("nsu=urn:plc;s=Oven.Temperature", NodeAddress("urn:plc", "Oven.Temperature")),
        ("nsu=http://a/b;i=42", NodeAddress("http://a/b", 42)),
        ("nsu=urn:x;s=has;semicolon=1", NodeAddress("urn:x", "has;semicolon=1")),
        ("i=2258", NodeAddress(STANDARD_URI, 2258)),
        ("ns=0;i=2258", NodeAddress(STANDARD_URI, 2258)),
        (
            "nsu=urn:x;g=72962b91-fa75-4ae6-8d28-b404dc7daf63",
            NodeAddress("urn:x", UUID("72962b91-fa75-4ae6-8d28-b404dc7daf63")),
        ),
        ("nsu=urn:x;b=AQID", NodeAddress("urn:x", b"\1\2\3")),
    ],
)
def test_node_ids_as_people_write_them(text: str, address: NodeAddress) -> None:
    """All four kinds of identifier, with the namespace by URI or the standard one."""
    assert parse_node_address(text) == address


@pytest.mark.parametrize(
    "text, why",
    [
        ("ns=2;s=Oven", "by number"),
        ("Oven.Temperature", "is not a node id"),
        ("nsu=urn:x;s=", "is not a node id"),
        ("nsu=urn:x;i=-1", "not 0 to"),
        ("nsu=urn:x;i=4294967296", "not 0 to"),
        ("nsu=urn:x;g=72962b91", "not a GUID"),
        ("nsu=urn:x;b=%%%", "not Base64"),
    ],
)
def test_what_is_refused_says_what_to_write(text: str, why: str) -> None:
    """A namespace index in particular: it may mean another machine after the server's next start."""
    with pytest.raises(ValueError, match=why):
        parse_node_address(text)


def test_the_index_is_looked_up_at_each_connect() -> None:
    """The same address has another index at a server that has renumbered, and none at one that lacks the namespace."""
    address = parse_node_address("nsu=urn:plc;s=x")
    assert address.index([STANDARD_URI, "urn:plc"]) == 1
    assert address.index([STANDARD_URI, "urn:other", "urn:plc"]) == 2
    assert address.index([STANDARD_URI]) is None
