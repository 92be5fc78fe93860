"""The commands of the protocol page, with a client that shares no code with this project."""

import asyncio
import json
import re
import shlex
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.replication.nodes import STREAM, Node, sealed
from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs/developers/protocol.md"
LIMIT_S = 60


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

    plant = Node.open(broker, "plant-a", tmp_path / "store")
    plant.serve({"idmz": [STREAM]})
    await plant.append(1, 1)
    async with plant.running():
        header, attachment = await ask(fetch)
        assert (header["status"], header["end_offset"], header["batches"]) == ("ok", 1, [[1, 1, len(attachment)]])
        assert attachment == sealed(plant.store)[0]
        header, attachment = await ask(confirm)
        assert (header["cursor_advanced_to"], attachment) == (1, b"")
        (consumer,) = plant.store.consumers.all()
        assert consumer.frontier == 1
    plant.store.close()
