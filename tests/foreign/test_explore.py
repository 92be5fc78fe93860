"""`bsfg opcua` against node-opcua: a secured server from the first day to a tag file that a source reads."""

import asyncio
import csv
import io
from pathlib import Path

import pytest

from agent.ingest import load_tag_map
from agent.ingest.opcua.security.certificate_facts import facts_of
from agent.settings.sources import OpcuaSourceSettings
from tests.foreign.plant import opcua, signing
from tests.foreign.server import foreign_server
from tests.ingest.plant import ingesting
from tests.support import command

pytestmark = pytest.mark.system

POLICIES = ["Basic256Sha256", "Aes256_Sha256_RsaPss"]


async def bsfg(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """The command in a process of its own, as the server's loop is busy here: exit status, output, errors."""
    done = await asyncio.to_thread(command.process, folder, *arguments)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.foreign("node_opcua")
async def test_from_the_first_test_to_stored_values(tmp_path: Path) -> None:
    """`test` stops at the server's certificate, then at ours, each with what to do; when both sides trust each other,
    `browse` writes a tag file with the units, types and descriptions of the server, and a source reads its tags."""
    async with foreign_server(tmp_path / "server", policies=POLICIES, tree=True) as server:
        code, out, _ = await bsfg(tmp_path, "opcua", "test", server.url)
        shown = facts_of(server.certificate.read_bytes())
        assert code == 1
        assert f"is not trusted, and is for {shown.host_names[0]}" in out
        assert shown.sha1 in out

        code, out, _ = await bsfg(tmp_path, "opcua", "test", server.url, "--trust")
        own = facts_of((tmp_path / "pki" / "opcua" / "own.der").read_bytes())
        assert code == 1
        assert "does not trust our certificate" in out
        assert out.count(own.sha1) == 2

        await server.trust(tmp_path / "pki" / "opcua" / "own.der")
        code, out, _ = await bsfg(tmp_path, "opcua", "test", server.url, "--trust")
        assert code == 0, out
        assert f'server_certificate_sha256 = "{shown.sha256}"' in out
        assert "Running: NodeOPCUA-Server" in out
        next_words = out.rpartition("next: bsfg ")[2].split()

        code, out, err = await bsfg(tmp_path, *next_words, "--glob", "Line*")
        assert code == 0, err
        assert "1 left out: this user may not read it\n  Line 1/Recipe: this user may not read it" in err
        file = tmp_path / next_words[-1]
        rows = {row["address"]: row for row in csv.DictReader(io.StringIO(file.read_text("utf-8-sig")))}
        oven = rows["nsu=urn:bsfg:foreign;s=oven1.temperature"]
        assert oven["tag"] == "Line_1/Oven_1.Temperature"
        assert (oven["data_type"], oven["unit"]) == ("Double", "°C")
        assert oven["description"] == "Air in the chamber, at the door"
        names = {rows[f"nsu=urn:bsfg:foreign;s=oven1.{name}"]["tag"] for name in ("o", "ö")}
        assert "Line_1/Oven_1.Offnung" in names
        assert len(names) == 2

        source = OpcuaSourceSettings("plc", server.url, file)
        assert len(load_tag_map(source).tags) == len(rows) == 8
        secured = opcua(
            server,
            tmp_path,
            tags=file.read_text("utf-8-sig"),
            **signing(tmp_path / "pki" / "opcua" / "own.der", tmp_path / "pki" / "opcua" / "own.key"),
            server_certificate_sha256=shown.sha256,
        )
        async with ingesting(secured) as run:
            for row in rows.values():
                await run.wait_good(row["tag"])


def enumerations(file: Path) -> dict[str, str]:
    """The names of numbers in a tag file, by address, where there are any."""
    found = load_tag_map(OpcuaSourceSettings("plc", "opc.tcp://plc", file)).tags
    return {tag.definition.address: tag.definition.enumeration for tag in found if tag.definition.enumeration}
