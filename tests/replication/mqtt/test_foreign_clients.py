"""The protocol page is sufficient: two clients that share no code with this project fetch and confirm from a real
server."""

import asyncio
import hashlib
import json
import re
import shlex
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.batch import open_messages, parse
from agent.settings.store import StoreSettings
from tests.replication.nodes import STREAM, Node, sealed
from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs/developers/protocol.md"
LIMIT_S = 60


async def serving(broker: Mosquitto, folder: Path, facts: int) -> Node:
    """The node of plant-a with facts of one tag, exported to idmz."""
    plant = Node.open(broker, "plant-a", folder, StoreSettings(batch_facts_target=100))  # batches for several pages
    plant.serve({"idmz": [STREAM]})
    await plant.append(1, facts)
    return plant


async def foreign_client(broker: Mosquitto, folder: Path, *words: str) -> dict[str, Any]:
    """What the client printed. It runs in a folder from which `agent` cannot be imported."""
    mine = broker.identity("idmz")
    reach = [broker.host, str(broker.port), str(mine.ca_file), str(mine.cert_file), str(mine.key_file)]
    script = shutil.copy(HERE / "foreign_client.py", folder / "client.py")
    command = [sys.executable, "-I", script, *reach, "plant-a", "idmz", *words]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_client_written_from_the_page_reads_every_batch(broker: Mosquitto, tmp_path: Path) -> None:
    """A client written from the page alone, without importing `agent`, gets every batch byte for byte in pages,
    confirms them, and understands two refusals."""

    async def run() -> dict[str, Any]:
        plant = await serving(broker, tmp_path / "store", 5_000)
        digests = [hashlib.sha256(each).hexdigest() for each in sealed(plant.store)]
        async with plant.running():
            printed = await foreign_client(broker, tmp_path, STREAM)
            assert printed["digests"] == digests
            (consumer,) = plant.store.consumers.all()
            assert (consumer.name, consumer.frontier) == (f"idmz.{STREAM}", 5_000)
        plant.store.close()
        return printed

    printed = asyncio.run(run())
    assert printed["streams"] == [STREAM]
    assert printed["definitions"] == ["tag:line1/temperature"]
    assert (printed["end_offset"], printed["advanced_to"], printed["frontier"]) == (5_000, 5_000, 5_000)
    assert (printed["refused"], printed["beyond"]) == ("unknown_consumer", ["confirm_beyond_log", False])
    assert printed["pages"] > 3


def test_plain_paho_appends(broker: Mosquitto, tmp_path: Path) -> None:
    """A client written from the page alone appends, repeats, is fenced and refused by code; the store contains exactly
    what it appended, in canonical form."""

    async def run() -> dict[str, Any]:
        plant = Node.open(broker, "plant-a", tmp_path / "store")
        plant.serve({}, {"idmz": ["facts.orders"]})
        async with plant.running():
            printed = await foreign_client(broker, tmp_path, "facts.orders", "append")
        messages = [one for each in sealed(plant.store, "facts.orders") for one in open_messages(parse(each))]
        assert [one.fact.object_json for one in messages] == ['{"a":"ä","b":1}'.encode(), b"2.5"]
        plant.store.close()
        return printed

    printed = asyncio.run(run())
    assert printed["applied"] == [["applied", 1], ["applied", 2]]
    assert printed["again"] == [["noop_already_applied", 1], ["noop_already_applied", 2], ["conflicting_duplicate", 1]]
    assert printed["leases"] == [1, 2]
    assert printed["fenced"] == [{"outcome": "rejected_fenced", "offset": 0, "lease_epoch": 2}]
    codes, messages = zip(*printed["refused"], strict=True)
    assert codes == ("bad_request", "append_not_allowed", "bad_request")
    assert "messages[1]: from_zone" in messages[0]


def commands_of_the_page() -> list[list[str]]:
    """The mosquitto_rr commands of the page, continued lines joined."""
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return [shlex.split(command) for command in block.replace("\\\n", " ").splitlines() if command.strip()]


async def test_mosquitto_rr(broker: Mosquitto, tmp_path: Path) -> None:
    """The two commands of the page fetch a page and confirm it, with Debian's own client and a shell."""
    if shutil.which("mosquitto_rr") is None:
        pytest.skip("mosquitto-clients is not installed")
    mine = broker.identity("idmz")
    here = {
        "broker.idmz.example": broker.host,
        "8883": str(broker.port),
        "ca.pem": str(mine.ca_file),
        "idmz.pem": str(mine.cert_file),
        "idmz.key": str(mine.key_file),
    }
    fetch, confirm = ([here.get(word, word) for word in command] for command in commands_of_the_page())

    async def ask(command: list[str]) -> tuple[dict[str, object], bytes]:
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr
        (length,) = struct.unpack_from("<I", done.stdout)
        return json.loads(done.stdout[4 : 4 + length]), done.stdout[4 + length :]

    plant = await serving(broker, tmp_path / "store", 1)
    async with plant.running():
        header, attachment = await ask(fetch)
        assert (header["status"], header["end_offset"], header["batches"]) == ("ok", 1, [[1, 1, len(attachment)]])
        assert attachment == sealed(plant.store)[0]
        header, attachment = await ask(confirm)
        assert (header["cursor_advanced_to"], attachment) == (1, b"")
        (consumer,) = plant.store.consumers.all()
        assert consumer.frontier == 1
    plant.store.close()
