"""Every type of value, from a foreign server over the wire to the samples a source hands in."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from asyncua.client.client import Client

from agent.ingest.opcua.values.type_reader import TypeReader, names_text
from agent.message import Json
from tests.foreign.plant import opcua
from tests.foreign.server import ForeignServer
from tests.foreign.test_explore import bsfg, enumerations
from tests.ingest.plant import ingesting

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

PLACE = {"X": 1.5, "Y": -2.5}
EXPECTED: dict[str, Any] = {
    "int64": -(2**63),
    "uint64": 2**64 - 1,
    "float": 0.10000000149011612,
    "string": "Grüße, 水",
    "datetime": "2026-03-29T01:00:00.123Z",
    "bytestring": b"\0\xff\x10",
    "nodeid": "nsu={server};s=pump",
    "qualifiedname": "nsu={server};pump",
    "localizedtext": {"locale": "de", "text": "Pumpe läuft"},
    "localizedtext_plain": "running",
    "minus_zero": -0.0,
    "string_empty": "",
    "string_null": None,
    "bytestring_empty": b"",
    "bytestring_null": None,
    "int64_array": [1, "-9007199254740993"],
    "double_array": [0.1, "-0.0", "NaN", "Infinity"],
    "double_array_empty": [],
    "datetime_array": ["2026-01-01T00:00:00Z", "2026-12-31T23:59:59.999Z"],
    "bytestring_array": [{"base64": "AA=="}, {"base64": ""}],
    "localizedtext_array": [{"locale": "en", "text": "on"}, {"locale": "de", "text": "an"}],
    "variant_array": [1, "two"],
    "enumeration": 7,
    "structure": PLACE,
    "structure_array": [PLACE, {"X": 3, "Y": 4}],
    "structure_nested": {
        "Serial": "P-100",
        "Mode": {"text": "Automatic", "value": 7},
        "Speed": 1450,
        "Since": "2026-01-01T00:00:00Z",
        "Place": PLACE,
        "Temperatures": [20.5, 21.5],
    },
}


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignServer]:
    """A server with a variable of every type, and other namespaces ahead of its own."""
    options = {"every_type": True, "tree": True, "namespaces_before": 2}
    with closing(ForeignServer(tmp_path_factory.mktemp("server"), **options)) as server:
        yield server


async def test_values_of_a_foreign_server_arrive_exactly(server: ForeignServer, tmp_path: Path) -> None:
    """Each type with what is easily lost: 64 bits, signs of zeros, nulls, locales, namespaces by URI although the
    server numbers them otherwise, structures of a vendor with what is nested in them."""
    tags = server.tags(*EXPECTED) + "f/own_uri,i=2254\n"  # ServerArray: the URI of namespace 1
    async with ingesting(opcua(server, tmp_path, tags=tags)) as run:
        for name in (*EXPECTED, "own_uri"):
            await run.wait_good(f"f/{name}")
        found = {name: run.store.good(f"f/{name}")[0].value for name in EXPECTED}
        (own_uri,) = run.store.good("f/own_uri")
    assert isinstance(own_uri.value, Json)
    server_uri = own_uri.value.data.decode().strip('[]"')
    for name, given in EXPECTED.items():
        expected = given.replace("{server}", server_uri) if isinstance(given, str) else given
        exact = Json.of(expected) if isinstance(expected, list | dict) else expected
        assert (found[name], repr(found[name])) == (exact, repr(exact)), name  # repr: -0.0 equals 0.0


async def test_the_names_of_an_enumeration_are_read_for_a_tag_file(server: ForeignServer, tmp_path: Path) -> None:
    """As the column `enumeration` wants them, from the server's description; nothing for a type without names. A browse
    writes those of a vendor's data type, and those that a variable has itself; of nothing else."""
    async with Client(server.url) as client:
        index = (await client.get_namespace_array()).index("urn:bsfg:foreign:types")
        types = TypeReader(client.uaclient.session)
        assert names_text(await types.definition((index, 3001))) == "0=Off|1=Manual|7=Automatic"
        assert names_text(await types.definition((0, 852))) == (
            "0=Running|1=Failed|2=NoConfiguration|3=Suspended|4=Shutdown|5=Test|6=CommunicationFault|7=Unknown"
        )
        assert names_text(await types.definition((0, 11))) == ""
    code, _, err = await bsfg(tmp_path, "opcua", "browse", server.url, "--insecure", "--csv", "t.csv")
    assert code == 0, err
    assert enumerations(tmp_path / "t.csv") == {
        server.address("enumeration"): "0=Off|1=Manual|7=Automatic",
        server.address("mode"): "0=Off|1=By hand|2=Automatic",
    }
