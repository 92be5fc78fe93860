"""TLS 1.3 is the lowest version that a node accepts of a broker. The handshakes run in memory; what a real broker
accepts of a node is in `test_broker.py`."""

import ssl
from pathlib import Path

import pytest

from agent.replication import pki


def server_context(folder: Path, version: ssl.TLSVersion) -> ssl.SSLContext:
    """A server with the broker's certificate that speaks `version` and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "brokers/b1.pem", folder / "brokers/b1.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version
    return context


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost") -> str | None:
    """The version on which both sides agree, each verifying strictly; ssl.SSLError where they do not."""
    for context in (client, server):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        unfinished = []
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                unfinished.append(side)
        if not unfinished:
            assert sides[1].getpeercert()["subject"] == ((("commonName", "idmz"),),)  # type: ignore[index]
            return sides[0].version()
    raise AssertionError("the handshake does not end")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_node_refuses_a_broker_below_tls_1_3(made: Path, version: ssl.TLSVersion) -> None:
    """A broker that offers at most TLS 1.2 gets no session, although certificate, authority and host name are right;
    nor does one of another name."""
    mine = pki.client_context(made / "ca.pem", made / "zones/idmz.pem", made / "zones/idmz.key")
    server = server_context(made, version)
    if version is ssl.TLSVersion.TLSv1_3:
        for host in ("localhost", "127.0.0.1"):
            assert handshake(mine, server, host) == "TLSv1.3"
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(mine, server, "elsewhere")
    else:
        with pytest.raises(ssl.SSLError, match=r"(?i)version|protocol"):
            handshake(mine, server)
