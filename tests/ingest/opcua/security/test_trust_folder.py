"""The trust folder on disk: what is read from it, and how certificates move in it."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from agent.ingest.opcua.security import trust_folder
from agent.ingest.opcua.security.certificate_facts import facts_of
from agent.ingest.opcua.security.trust_folder import TrustError, TrustFolder
from tests.ingest.opcua.security.certificates import certificate, der, revocation_list

SERVER = facts_of(der(certificate("press 1/../x")))


def test_a_rejected_certificate_is_kept_once_and_moves_to_trusted(tmp_path: Path) -> None:
    """Its file has a harmless name with the thumbprint that servers show; any form of the thumbprint finds it."""
    folder = TrustFolder(tmp_path)
    file = folder.reject(SERVER)
    assert folder.reject(SERVER) == file
    assert file.parent == tmp_path / "rejected"
    assert file.name == f"press_1_.._x [{SERVER.sha1}].der"
    spaced = ":".join(SERVER.sha1[n : n + 2] for n in range(0, 40, 2))
    trusted = folder.trust(spaced)
    assert trusted.file.parent == tmp_path / "trusted"
    assert not file.exists()
    assert [each.facts for each in folder.certificates("trusted")] == [SERVER]
    assert folder.distrust(SERVER.sha256[:10]).file == file
    assert folder.certificates("trusted") == []


@pytest.mark.parametrize(
    "thumbprint, words", [("0" * 40, "no certificate"), ("abc", "at least 8"), ("zz" * 20, "is no")]
)
def test_a_wrong_thumbprint_moves_nothing(tmp_path: Path, thumbprint: str, words: str) -> None:
    """An unknown, short or misspelt one is refused, and the certificate stays where it is."""
    folder = TrustFolder(tmp_path)
    file = folder.reject(SERVER)
    with pytest.raises(TrustError, match=words):
        folder.trust(thumbprint)
    assert file.exists()


def test_rejected_certificates_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers at a server's address can show a new one each time: the oldest go."""
    monkeypatch.setattr(trust_folder, "REJECTED_MAX", 3)
    folder = TrustFolder(tmp_path)
    files = [folder.reject(facts_of(der(certificate("server", serial=number)))) for number in range(1, 6)]
    assert sorted(each.file for each in folder.certificates("rejected")) == sorted(files[2:])


def test_files_of_any_form_and_name_are_read_and_others_are_named(tmp_path: Path) -> None:
    """PEM and DER under any name; what is neither is passed over and listed."""
    for name in ("trusted", "issuers", "crl"):
        (tmp_path / name).mkdir()
    authority = certificate("authority", is_authority=True)
    (tmp_path / "trusted" / "a.crt").write_bytes(certificate().public_bytes(Encoding.PEM))
    (tmp_path / "issuers" / "ca").write_bytes(der(authority))
    (tmp_path / "crl" / "ca.pem").write_bytes(revocation_list().public_bytes(Encoding.PEM))
    (tmp_path / "crl" / "other.crl").write_bytes(der(revocation_list("other")))
    (tmp_path / "crl" / "ca.der").write_bytes(der(authority))
    (tmp_path / "trusted" / "notes.txt").write_text("of the plant's PLCs")
    (tmp_path / "trusted" / ".half.der.0123").write_bytes(der(authority))
    folder = TrustFolder(tmp_path)
    assert [each.file.name for each in folder.certificates("trusted")] == ["a.crt"]
    assert folder.issuers() == [authority]
    issuers = {revoked.issuer.rfc4514_string() for revoked in folder.revocation_lists()}
    assert issuers == {"CN=authority", "CN=other"}
    assert folder.unreadable() == ["trusted/notes.txt", "crl/ca.der"]


def test_what_is_put_in_is_checked_first(tmp_path: Path) -> None:
    """A file that is no certificate, or no list, is refused; good ones are kept as DER."""
    folder = TrustFolder(tmp_path)
    assert folder.add("issuers", certificate("a").public_bytes(Encoding.PEM)).read_bytes()[:1] == b"\x30"
    assert folder.add("crl", der(revocation_list())).name == "authority.crl"
    for name in ("trusted", "crl"):
        with pytest.raises(TrustError, match="this is no"):
            folder.add(name, b"text")
