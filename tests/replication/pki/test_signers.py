"""Signer certificates: made, issued, pinned, compromised; never accepted for TLS, and TLS certificates never as
signers."""

import json
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from agent.cli import bsfg
from agent.config import load
from agent.replication import pki
from agent.settings.signing import OriginSettings, SigningSettings
from agent.signing.certificates import FACT_SIGNING, CertificateRefusal, RefusalReason, Signer, SignerTrust, signer_of
from agent.signing.files import load_identity, load_trust, read_compromises
from tests.replication.pki.site import NOW, make_site

NOW_MS = round(NOW.timestamp() * 1000)


def der_of(file: Path) -> bytes:
    """The certificate in a PEM file."""
    return x509.load_pem_x509_certificate(file.read_bytes()).public_bytes(serialization.Encoding.DER)


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A facts authority, and nodes that have signer certificates of it."""
    folder = tmp_path_factory.mktemp("signers")
    pki.create_authority(folder / "facts", NOW, for_facts=True)
    for zone in ("plant-a", "idmz"):
        node = folder / zone
        pki.create_signer(node, zone, NOW)
        issued = pki.sign_signer(folder / "facts", zone, pki.request_signer(node, zone).request_file, NOW)
        pki.import_signer(node, zone, issued.cert_file, folder / "facts/ca.pem", NOW)
    make_site(folder / "tls")
    return folder


def test_the_node_of_a_pair_has_two_certificates_of_one_key(signers: Path, tmp_path: Path) -> None:
    """The key of the zone gets a certificate in the name of the node, which is issued as any; both in one file are the
    identity of the node."""
    node = tmp_path / "node"
    pki.create_signer(node, "plant-a", NOW)
    pki.create_signer(node, "plant-a-2", NOW, key_of="plant-a")
    made = node / "signers"
    for name in ("plant-a", "plant-a-2"):
        issued = pki.sign_signer(signers / "facts", name, pki.request_signer(node, name).request_file, NOW)
        pki.import_signer(node, name, issued.cert_file, signers / "facts/ca.pem", NOW)
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join((made / f"{name}.pem").read_bytes() for name in ("plant-a", "plant-a-2")))
    signer = load_identity(SigningSettings(made / "plant-a.key", both), "plant-a", "plant-a-2")
    assert signer is not None
    assert (signer.certificate, signer.message_certificate) == (
        der_of(made / "plant-a.pem"),
        der_of(made / "plant-a-2.pem"),
    )
    with pytest.raises(pki.PkiError, match="there is no"):
        pki.create_signer(node, "plant-b-2", NOW, key_of="plant-b")


def test_an_issued_signer_is_trusted(signers: Path) -> None:
    """With a key made on the node and a certificate of the facts authority, a receiver that names the authority trusts
    the signer, and the node can sign with it."""
    node = signers / "plant-a"
    settings = SigningSettings(
        node / "signers/plant-a.key", node / "signers/plant-a.pem", node / "facts-ca.pem", node / "none.toml"
    )
    signer = load_identity(settings, "plant-a")
    assert signer is not None
    found = signer_of(signer.certificate, load_trust(settings, []), NOW_MS)
    assert isinstance(found, Signer)
    assert found.public.verify(b"head", signer.sign(b"head"))
    assert (signers / "plant-a/signers/plant-a.key").stat().st_mode & 0o777 == 0o600
    secret = (node / "signers/plant-a.key").read_bytes()
    assert not [file for file in (signers / "facts").rglob("*") if file.is_file() and secret in file.read_bytes()]


def test_certificates_of_tls_and_of_facts_never_stand_in_for_each_other(signers: Path) -> None:
    """A zone's TLS certificate is no signer even if its authority is named as the facts authority, and neither kind of
    authority signs for the other."""
    facts, tls = signers / "facts", signers / "tls"
    anchors = [x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()) for folder in (facts, tls)]
    found = signer_of(der_of(tls / "zones/plant-a.pem"), SignerTrust(anchors), NOW_MS)
    assert isinstance(found, CertificateRefusal)
    assert found.reason is RefusalReason.NOT_A_SIGNER
    request = pki.request_signer(signers / "plant-a", "plant-a").request_file
    with pytest.raises(pki.PkiError, match="not a facts authority"):
        pki.sign_signer(tls, "plant-a", request, NOW)
    with pytest.raises(pki.PkiError, match="is a facts authority, not"):
        pki.sign_request(facts, "plant-a", request, NOW)
    with pytest.raises(pki.PkiError, match="has no Ed25519 key"):
        pki.sign_signer(facts, "plant-a", pki.make_request(signers / "other", "plant-a", force=True).request_file, NOW)
    node = signers / "plant-a/signers"
    assert any("not for a client" in str(problem) for problem in _identity_problems(signers, node))


def _identity_problems(signers: Path, node: Path) -> list[pki.IdentityProblem]:
    return pki.check_identity(node / "plant-a.pem", node / "plant-a.key", signers / "facts/ca.pem", "plant-a", now=NOW)


@pytest.mark.parametrize("purpose", ["sslclient", "sslserver", "smimesign"])
def test_openssl_refuses_a_signer_for_tls(signers: Path, purpose: str) -> None:
    """OpenSSL, set to trust the facts authority, accepts the signer for none of its purposes, but does without a
    purpose: so the usage is what it refuses."""
    words = ["openssl", "verify", "-CAfile", signers / "facts/ca.pem"]
    signer = signers / "plant-a/signers/plant-a.pem"
    refused = subprocess.run([*words, "-purpose", purpose, signer], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "purpose" in refused.stderr
    assert subprocess.run([*words, signer], capture_output=True, check=False).returncode == 0


def test_openssl_refuses_a_client_that_a_facts_authority_issued(signers: Path, tmp_path: Path) -> None:
    """Even a TLS client certificate is refused if a facts authority issued it; the same certificate from the TLS
    authority is accepted."""
    for folder, is_good in ((signers / "tls", True), (signers / "facts", False)):
        files = [folder / "ca.pem", folder / "ca.key", signers / "tls/zones/idmz.key", tmp_path / "made.pem"]
        request = ["openssl", "req", "-new", "-key", files[2], "-subj", "/CN=idmz", "-out", tmp_path / "r.csr"]
        (tmp_path / "ext").write_text("extendedKeyUsage = clientAuth\n")
        sign = ["openssl", "x509", "-req", "-in", tmp_path / "r.csr", "-CA", files[0], "-CAkey", files[1], "-days", "9"]
        for command in (request, [*sign, "-CAcreateserial", "-extfile", tmp_path / "ext", "-out", files[3]]):
            subprocess.run(command, check=True, capture_output=True)
        verify = ["openssl", "verify", "-purpose", "sslclient", "-CAfile", files[0], files[3]]
        assert (subprocess.run(verify, capture_output=True, check=False).returncode == 0) is is_good, folder


# --- the commands -----------------------------------------------------------------------------------------------------


def run(*words: object) -> Result:
    """A command of bsfg pki signer."""
    return CliRunner().invoke(bsfg, ["pki", "signer", *(str(word) for word in words)])


def test_what_pin_prints_is_accepted_in_node_toml(tmp_path: Path) -> None:
    """The printed lines, pasted into a receiver's node.toml, make it trust this certificate and not the next one."""
    node = tmp_path / "node"
    assert run("key", "plant-a", "--pki", node).exit_code == 0
    certificate = node / "signers/plant-a.pem"
    printed = run("pin", certificate)
    assert printed.exit_code == 0
    file = tmp_path / "node.toml"
    file.write_text(f'[node]\nzone = "idmz"\n\n{printed.output}')
    settings = load(file)
    assert settings.origin == (OriginSettings("plant-a", "required", settings.origin[0].pinned),)
    trust = load_trust(settings.signing, settings.origin)
    assert isinstance(signer_of(der_of(certificate), trust, NOW_MS), Signer)
    assert run("key", "plant-a", "--pki", node, "--force").exit_code == 0
    assert isinstance(signer_of(der_of(certificate), trust, NOW_MS), CertificateRefusal)
    assert (node / "signers/previous/plant-a.key").exists()


def test_what_key_prints_is_accepted_in_node_toml(tmp_path: Path) -> None:
    """The printed lines, in the section that the text before them names, make the node sign."""
    printed = run("key", "plant-a", "--pki", tmp_path / "pki")
    lines = [line.strip() for line in printed.output.splitlines() if line.startswith("  ")]
    file = tmp_path / "node.toml"
    file.write_text("\n".join(['[node]\nzone = "plant-a"', "[signing]", *lines[-2:]]))
    assert load_identity(load(file).signing, "plant-a") is not None


def test_a_second_key_needs_force(tmp_path: Path) -> None:
    """A key in use is not replaced by accident; a bad name makes nothing."""
    assert run("key", "plant-a", "--pki", tmp_path / "pki").exit_code == 0
    key = (tmp_path / "pki/signers/plant-a.key").read_bytes()
    assert "exist already" in str(run("key", "plant-a", "--pki", tmp_path / "pki").exception)
    assert (tmp_path / "pki/signers/plant-a.key").read_bytes() == key
    assert "not a valid name" in str(run("key", "Plant A", "--pki", tmp_path / "other").exception)
    assert "make it: bsfg pki signer key" in run_hint("request", "idmz", "--pki", tmp_path / "pki")
    assert not (tmp_path / "other").exists()


def run_hint(*words: object) -> str:
    """The hint of a command that fails."""
    error = run(*words).exception
    assert isinstance(error, pki.PkiError)
    return error.hint


def test_an_import_that_does_not_fit_changes_nothing(signers: Path, tmp_path: Path) -> None:
    """Another zone's certificate, another key's, one of another authority, one for TLS, an expired one."""
    node = tmp_path / "node"
    pki.create_signer(node, "plant-a", NOW)
    before = (node / "signers/plant-a.pem").read_bytes()
    request = pki.request_signer(node, "plant-a").request_file
    mine = pki.sign_signer(signers / "facts", "plant-a", request, NOW).cert_file
    old = tmp_path / "old.pem"
    pki.sign_signer(signers / "facts", "plant-a", request, NOW - timedelta(days=9), days=1).cert_file.rename(old)
    pki.sign_signer(signers / "facts", "plant-a", request, NOW)
    pki.create_authority(tmp_path / "facts", NOW, for_facts=True)
    for cert_file, ca_file, why in (
        (signers / "idmz/signers/idmz.pem", None, "is for key .* of idmz"),
        (signers / "plant-a/signers/plant-a.pem", None, "is for key .* of plant-a, not for"),
        (mine, tmp_path / "facts/ca.pem", "was not issued by"),
        (mine, signers / "tls/ca.pem", "is not a facts authority"),
        (signers / "tls/zones/plant-a.pem", None, "is not a signer certificate"),
        (old, None, "signed after the certificate had expired"),
    ):
        with pytest.raises(pki.PkiError, match=why):
            pki.import_signer(node, "plant-a", cert_file, ca_file, NOW)
    assert (node / "signers/plant-a.pem").read_bytes() == before
    assert not (node / "facts-ca.pem").exists()


def test_a_compromised_key_is_recorded_and_refused(signers: Path, tmp_path: Path) -> None:
    """A key is added, by key id or certificate, to the list that node.toml names; entries add up; from then on the key
    is refused. With --file the list is another one."""
    file = tmp_path / "node.toml"
    facts_ca = signers / "facts/ca.pem"
    file.write_text(f'[node]\nzone = "enterprise"\n[signing]\nfacts_ca_file = "{facts_ca}"\n')
    certificate = signers / "plant-a/signers/plant-a.pem"
    since = (NOW - timedelta(hours=1)).isoformat()
    first = run("compromise", "0011223344556677", "--since", "2026-11-22T10:00Z", "--config", file)
    assert first.exit_code == 0, first.output
    done = run("compromise", certificate, "--since", since, "--note", "gateway stolen", "--config", file, "--json")
    assert done.exit_code == 0, done.output
    rows = read_compromises(tmp_path / "compromised.toml")
    assert [row.note for row in rows] == ["", "gateway stolen"]
    assert rows[1].key_id.hex() == json.loads(done.output)["key_id"]
    settings = load(file)
    trust = load_trust(settings.signing, settings.origin)
    found = signer_of(der_of(certificate), trust, NOW_MS)
    assert isinstance(found, CertificateRefusal)
    assert found.reason is RefusalReason.COMPROMISED
    assert isinstance(signer_of(der_of(signers / "idmz/signers/idmz.pem"), trust, NOW_MS), Signer)
    for words, why in (
        (["xyz", "--since", since], "neither a key id"),
        ([certificate, "--since", "2026-11-22"], "--since"),
    ):
        bad = run("compromise", *words, "--config", file)
        assert (bad.exit_code, why in bad.output) == (2, True), bad.output
    assert len(read_compromises(tmp_path / "compromised.toml")) == 2
    other = run("compromise", "8899aabbccddeeff", "--since", since, "--file", tmp_path / "other.toml", "--config", file)
    assert other.exit_code == 0, other.output
    assert [len(read_compromises(tmp_path / name)) for name in ("compromised.toml", "other.toml")] == [2, 1]


def test_show_says_what_is_wrong(signers: Path, tmp_path: Path) -> None:
    """It shows zone, key, issuer and validity; status 1 if any of the certificates has expired or is of another
    authority; no secret in the output."""
    certificate = signers / "plant-a/signers/plant-a.pem"
    good = run("show", certificate, "--facts-ca", signers / "facts/ca.pem", "--json")
    assert good.exit_code == 0
    row = json.loads(good.output)
    assert (row["zone"], row["purposes"], row["problems"]) == ("plant-a", ["signing facts"], [])
    assert FACT_SIGNING.dotted_string not in good.output
    pki.create_signer(tmp_path, "plant-a", NOW - timedelta(days=9), days=1)
    expired = run("show", tmp_path / "signers/plant-a.pem", "--facts-ca", signers / "facts/ca.pem")
    assert expired.exit_code == 1
    assert "PROBLEM signed after the certificate had expired" in expired.output
    assert "PROBLEM not issued by" in expired.output
    assert "itself, to be pinned" in expired.output
    assert run("show", tmp_path / "signers/plant-a.pem", certificate).exit_code == 1
