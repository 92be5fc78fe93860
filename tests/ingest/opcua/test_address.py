import pytest

from agent.ingest.opcua.address import Reading, parse_readings
from agent.settings.opcua_address import NodeAddress

NUMBER = NodeAddress("urn:x", 2001)


@pytest.mark.parametrize(
    "text, readings",
    [
        ("nsu=urn:x;i=2001", [Reading(NUMBER)]),
        ("nsu=urn:x;i=2001[3]", [Reading(NUMBER, "3")]),
        ("nsu=urn:x;i=2001[1:3]", [Reading(NUMBER, "1:3")]),
        ("nsu=urn:x;i=2001[2,0:1]", [Reading(NUMBER, "2,0:1")]),
        ("nsu=urn:x;s=a[3]", [Reading(NodeAddress("urn:x", "a[3]")), Reading(NodeAddress("urn:x", "a"), "3")]),
        ("nsu=urn:x;s=a[x]", [Reading(NodeAddress("urn:x", "a[x]"))]),
        ("nsu=urn:x;s=[3]", [Reading(NodeAddress("urn:x", "[3]"))]),
    ],
)
def test_an_index_reads_elements(text: str, readings: list[Reading]) -> None:
    """Of a text identifier it may be a part: then the node of that very name comes first."""
    assert list(parse_readings(text)) == readings


def test_an_index_that_goes_backwards_is_refused() -> None:
    """With what is wrong; the server would refuse it later and with a code."""
    with pytest.raises(ValueError, match="3:3, whose end is not above"):
        parse_readings("nsu=urn:x;i=1[3:3]")
