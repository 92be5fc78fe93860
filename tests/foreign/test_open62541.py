"""A second foreign stack, open62541: what the source does against node-opcua it does here too."""

from pathlib import Path

import pytest

from agent.ingest.opcua.security.certificate import ensure_certificate
from tests.foreign.account import account
from tests.foreign.plant import opcua, storing
from tests.foreign.server import OPEN62541, foreign_server
from tests.ingest.fakes import in_loop
from tests.ingest.plant import ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("open62541")]

COUNT = {"name": "count", "type": "Int32", "period_ms": 50}


@in_loop
async def test_a_quiet_connection_lasts(tmp_path: Path) -> None:
    """While no value changes, the server's clock proves that it is alive; nothing is lost over the whole time."""
    async with foreign_server(tmp_path / "server", OPEN62541, variables=[COUNT]) as server:
        async with storing(opcua(server, tmp_path, "count"), tmp_path) as run:
            await run.wait_good("f/count", 5)
            await server.run(on=False)
            until = run.source("plc").turns_total + 18  # 4.5 s, one and a half times what is borne in silence
            await wait_until_async(lambda: run.source("plc").turns_total >= until, "4.5 s of life")
            await server.run(on=True)
            await run.wait_good("f/count", len(run.store.good("f/count")) + 5)
            assert (run.source("plc").connects_total, run.source("plc").last_error) == (1, "")
        found = account(server, tmp_path, "count")
        assert not found.lost
        assert not found.gaps


@in_loop
async def test_a_node_comes_back_and_limits_are_kept(tmp_path: Path) -> None:
    """A server that takes seven items a call gets forty; one of them is deleted and made again, and comes back over the
    same connection. It is sampled: with sampling 0 open62541 says nothing of a deleted node's items."""
    many = {"name": "many", "type": "Int32", "period_ms": 100, "count": 40}
    limits = {"items_per_call": 7}
    names = [f"many_{i:04}" for i in range(40)]
    async with (
        foreign_server(tmp_path / "server", OPEN62541, variables=[many], limits=limits) as server,
        ingesting(opcua(server, tmp_path, *names, sampling_interval_ms=50)) as run,
    ):
        for name in names:
            await run.wait_good(f"f/{name}", 2)
        await server.delete("many_0007")
        await wait_until_async(lambda: run.store.of("f/many_0007")[-1].quality >> 31, "the node's end")
        await server.recreate("many_0007")
        made_again = server.record("many_0007")[-1].time_ns
        await wait_until_async(
            lambda: run.store.good("f/many_0007")[-1].source_time_ns >= made_again, "values of the new node"
        )
        assert run.source("plc").connects_total == 1


@pytest.mark.parametrize("policy", ["Basic256Sha256", "Aes128Sha256RsaOaep", "Aes256Sha256RsaPss"])
def test_values_come_over_every_policy(policy: str, tmp_path: Path) -> None:
    """Signed and encrypted with each policy, at a server that trusts our certificate and none other."""
    certificate, key = tmp_path / "own" / "bsfg.pem", tmp_path / "own" / "bsfg.key"
    ensure_certificate(certificate, key, "urn:bsfg:agent")

    @in_loop
    async def story() -> None:
        options = {"variables": [COUNT], "policies": [policy], "trusted": [str(certificate)]}
        async with foreign_server(tmp_path / "server", OPEN62541, **options) as server:
            security = {"security_policy": policy, "security_mode": "SignAndEncrypt", "insecure": False}
            files = {"certificate_file": certificate, "private_key_file": key}
            pinned = {"server_certificate_file": server.certificate}
            async with ingesting(opcua(server, tmp_path, "count", **security, **files, **pinned)) as run:
                await run.wait_good("f/count", 3)

    story()
