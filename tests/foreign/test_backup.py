"""A gateway replaced from its backup: the OPC UA server sees the client that it trusts."""

from pathlib import Path

import pytest

from agent.demo.processes import Child
from agent.ingest.opcua.security.certificate import ensure_certificate
from agent.ingest.opcua.security.certificate_facts import facts_of
from tests.foreign.server import ForeignServer, foreign_server
from tests.support import command
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

COUNT = {"name": "count", "type": "Int32", "period_ms": 50}


def prepare(folder: Path, server: ForeignServer) -> Path:
    """A node with this server as its source, and the identity that the node makes at its first connection."""
    folder.mkdir()
    (folder / "plc.csv").write_text(server.tags("count"))
    pinned = facts_of(server.certificate.read_bytes()).sha256
    (folder / "node.toml").write_text(
        f'[node]\nzone = "plant-a"\n[[opcua]]\nname = "plc"\nurl = "{server.url}"\ntags_file = "plc.csv"\n'
        f'server_certificate_sha256 = "{pinned}"\nreconnect_delay_ms = 100\nreconnect_delay_max_ms = 200\n'
    )
    return folder / "node.toml"


async def test_the_server_needs_no_new_trust(tmp_path: Path) -> None:
    """A node whose certificate the server trusts is saved, and lost. Restored elsewhere, it begins a new store and has
    values at once; a node with the same settings that makes its own identity is refused."""
    (tmp_path / "pw").write_text("correct horse battery\n")
    (tmp_path / "pw").chmod(0o600)
    given = ("--passphrase-file", str(tmp_path / "pw"))
    async with foreign_server(tmp_path / "server", policies=["Basic256Sha256"], variables=[COUNT]) as server:
        old = prepare(tmp_path / "old", server)
        own = tmp_path / "old/state/opcua/own.der"
        own.parent.mkdir(parents=True)
        ensure_certificate(own, own.with_suffix(".key"), "urn:bsfg:agent")
        await server.trust(own)
        assert command.bsfg(tmp_path, "backup", "a.bak", "--config", str(old), *given).returncode == 0
        (tmp_path / "old").rename(tmp_path / "gone")
        restored = command.bsfg(tmp_path, "restore", "a.bak", "--config", "new/node.toml", *given)
        assert restored.returncode == 0, restored.stdout + restored.stderr
        stranger = prepare(tmp_path / "stranger", server)
        for config, wanted in ((tmp_path / "new/node.toml", "Good"), (stranger, "does not trust our certificate")):
            log = config.with_name("log")
            with Child("node", command.words("run", "--config", str(config)), log) as child:
                child.start()
                show = ("latest", "f/count", "--config", str(config))

                def is_there(log: Path = log, show: tuple[str, ...] = show, wanted: str = wanted) -> bool:
                    return wanted in command.bsfg(tmp_path, *show).stdout + log.read_text()

                await wait_until_async(is_there, wanted, 60)
            assert ("Good" in command.bsfg(tmp_path, *show).stdout) is (wanted == "Good")
