"""The commands of the protocol page, with a client that shares no code with this project."""

import asyncio
import contextlib
import json
import re
import shlex
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from agent.replication.protocol.errors import PeerAbsent
from agent.replication.protocol.topics import response_topic
from tests.replication.nodes import STREAM, Node, sealed
from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs/developers/protocol.md"
LIMIT_S = 60


async def test_by_hand(broker: Mosquitto, tmp_path: Path) -> None:
    """The commands of the page fetch a page and confirm it, with Debian's own clients."""
    if shutil.which("mosquitto_pub") is None:
        pytest.skip("mosquitto-clients is not installed")
    mine = broker.identity("idmz")
    here = {
        "broker.idmz.example": broker.host,
        "8883": str(broker.port),
        "ca.pem": str(mine.ca_file),
        "idmz.pem": str(mine.cert_file),
        "idmz.key": str(mine.key_file),
        "2": "3",  # one more: that of this test
    }
    ((block, sent),) = re.findall(r"```sh\n(.*?)```\n\n```json\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    lines = block.replace("\\\n", " ").replace(">answers &", "").splitlines()
    subscribe, publish = ([here.get(word, word) for word in shlex.split(line)] for line in lines)
    fetch, confirm = ([sent_line if word == "REQUEST" else word for word in publish] for sent_line in sent.splitlines())
    plant = Node.open(broker, "plant-a", tmp_path / "store")
    plant.serve({"idmz": [STREAM]})
    await plant.append(1, 1)
    async with plant.running():
        waiting = await asyncio.create_subprocess_exec(*subscribe, stdout=subprocess.PIPE)
        async with asyncio.timeout(LIMIT_S):
            topic, is_subscribed = response_topic("plant-a", "idmz", "ready"), False
            while not is_subscribed:  # the broker's own answer says so
                with contextlib.suppress(PeerAbsent):
                    await plant.link.require().publish_request(topic, b"", None, b"", 10)
                    is_subscribed = True
        await asyncio.to_thread(subprocess.run, fetch, timeout=LIMIT_S, check=True)
        assert waiting.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            (length,) = struct.unpack("<I", await waiting.stdout.readexactly(4))
            header = json.loads(await waiting.stdout.readexactly(length))
        assert (header["status"], header["end_offset"]) == ("ok", 1)
        (last,) = header["lives"]
        named = [word.replace("LIFE", last["life"]) for word in confirm]
        await asyncio.to_thread(subprocess.run, named, timeout=LIMIT_S, check=True)
        printed, _ = await asyncio.wait_for(waiting.communicate(), LIMIT_S)
        assert printed.startswith(sealed(plant.store)[0])
        (consumer,) = plant.store.consumers.all()
        assert consumer.frontier == 1
