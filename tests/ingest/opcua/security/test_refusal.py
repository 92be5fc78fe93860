"""What an operator reads when a connection fails: which server, why, and what to do."""

from pathlib import Path

import pytest

from agent.ingest.errors import SourceBusy, SourceLost, SourceRefused
from agent.ingest.opcua.security.certificate import ensure_certificate, file_to_import
from agent.ingest.opcua.security.certificate_facts import CertificateFacts, facts_of, split_chain
from agent.ingest.opcua.security.refusal import CLOSED, SILENT, SWAPPED, ClientIdentity, ConnectStep, Failure, explain

URL = "opc.tcp://plc:4840"


@pytest.fixture(name="own", scope="module")
def own_certificate(tmp_path_factory: pytest.TempPathFactory) -> CertificateFacts:
    """Our certificate."""
    folder = tmp_path_factory.mktemp("own")
    ensure_certificate(folder / "own.der", folder / "own.key", "urn:bsfg:agent")
    return facts_of((folder / "own.der").read_bytes())


@pytest.mark.parametrize("step", [ConnectStep.CHANNEL, ConnectStep.SESSION])
@pytest.mark.parametrize(
    "status", ["BadCertificateUntrusted", "BadSecurityChecksFailed", "BadTcpInternalError", CLOSED]
)
def test_a_server_that_does_not_trust_us_is_recognised(status: str, step: ConnectStep, own: CertificateFacts) -> None:
    """However the server hides it, the line names the server, both thumbprints, the file and the move to make."""
    found = explain(Failure(step, status), ClientIdentity(URL, "Basic256Sha256", own, "pki/own.der"))
    assert isinstance(found, SourceRefused)
    assert str(found).startswith(f"{URL} ")
    for wanted in (own.sha1, own.sha256, "pki/own.der", status, "from rejected to trusted", "connects by itself"):
        assert wanted in str(found)
    assert ("most likely" in str(found)) == (status != "BadCertificateUntrusted")
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    "step, status, kind, words",
    [
        (ConnectStep.CHANNEL, "BadCertificateTimeInvalid", SourceRefused, "set the server's clock"),
        (ConnectStep.SESSION, "BadCertificateUriInvalid", SourceRefused, "has urn:bsfg:agent: set application_uri"),
        (ConnectStep.CHANNEL, "BadCertificateIssuerRevocationUnknown", SourceRefused, "revocation list at the server"),
        (ConnectStep.CHANNEL, "BadCertificateUseNotAllowed", SourceRefused, "bsfg opcua certificate"),
        (ConnectStep.CHANNEL, "BadSecurityPolicyRejected", SourceRefused, "refuses the security policy Basic256Sha256"),
        (ConnectStep.SESSION, SWAPPED, SourceRefused, "something between may answer in its place"),
        (ConnectStep.USER, "BadIdentityTokenRejected", SourceRefused, "refuses user op"),
        (ConnectStep.USER, "BadCertificateUntrusted", SourceRefused, "refuses user op"),
        (ConnectStep.CHANNEL, SILENT, SourceLost, "no answer in time while the secure channel is opened"),
        (ConnectStep.SESSION, "BadTooManySessions", SourceBusy, "accepts no further connection"),
        (ConnectStep.SESSION, "BadServerHalted", SourceLost, "BadServerHalted while the session is created"),
        (ConnectStep.TCP, SILENT, SourceLost, "check the address, the server and firewalls"),
        (ConnectStep.HELLO, CLOSED, SourceLost, "is it an OPC UA server"),
        (ConnectStep.TCP, CLOSED, SourceLost, "check the address, the server and firewalls"),
    ],
)
def test_other_failures_are_distinguished(
    step: ConnectStep, status: str, kind: type, words: str, own: CertificateFacts
) -> None:
    """Each reason that a server does give leads to its own advice. One that is silent, full or halted may return by
    itself, which is no refusal. None of them sends the operator to the server's trust list."""
    found = explain(Failure(step, status), ClientIdentity(URL, "Basic256Sha256", own, "pki/own.der", "user op"))
    assert type(found) is kind
    assert words in str(found)
    assert "from rejected to trusted" not in str(found)


@pytest.mark.parametrize("status", ["BadSecurityPolicyRejected", "BadSecurityChecksFailed", CLOSED])
def test_a_server_that_shows_nothing_without_security_needs_its_file(status: str) -> None:
    """No advice to list its policies, which needs the same answer. A closed connection may also be a server that goes
    down."""
    found = explain(Failure(ConnectStep.CHANNEL, status), ClientIdentity(URL, "None"))
    assert isinstance(found, SourceRefused) is (status != CLOSED)
    assert "set server_certificate_file" in str(found)
    assert "lists" not in str(found)


def test_without_a_certificate_of_ours_no_hint_names_a_trust_list() -> None:
    """Security None has no certificate to trust."""
    found = explain(Failure(ConnectStep.SESSION, CLOSED), ClientIdentity(URL, "None"))
    assert isinstance(found, SourceLost)
    assert "trust" not in str(found)


def test_a_chain_is_split_and_a_broken_one_refused(own: CertificateFacts) -> None:
    """The server's own certificate is the first of the field; bytes that are none are named."""
    assert split_chain(own.der * 3) == [own.der] * 3
    for broken in (own.der + b"\x30", own.der[:-1], b"\x31\x00", own.der * 11):
        with pytest.raises(ValueError, match=r"cut short|no certificate|more than"):
            split_chain(broken)


def test_the_handed_over_file_is_der(tmp_path: Path) -> None:
    """A file named .der holds DER; beside a PEM certificate lies a DER copy of it; PEM in a .der is put right."""
    der, pem = tmp_path / "a.der", tmp_path / "b.pem"
    ensure_certificate(der, tmp_path / "a.key", "urn:a")
    ensure_certificate(pem, tmp_path / "b.key", "urn:b")
    assert der.read_bytes()[:1] == b"\x30"
    assert pem.read_bytes().startswith(b"-----BEGIN")
    assert file_to_import(der) == der
    assert file_to_import(pem) == tmp_path / "b.der"
    assert facts_of((tmp_path / "b.der").read_bytes()) == facts_of(pem.read_bytes())
    der.write_bytes(pem.read_bytes())
    assert file_to_import(der) == der
    assert facts_of(der.read_bytes()) == facts_of(pem.read_bytes())
    assert der.read_bytes()[:1] == b"\x30"
