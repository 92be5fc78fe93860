"""The files behind [signing] and [[origin]]: what is read, and what is refused at once."""

import base64
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.config import ConfigError, read
from agent.settings.node import NodeSettings
from agent.settings.signing import OriginSettings, SigningSettings
from agent.signing.certificates import signer_of
from agent.signing.files import Compromise, compromises_text, load_identity, load_trust, read_compromises
from agent.signing.keys import SigningError
from tests.signing.signers import Made, make, p256

T = datetime(2026, 11, 22, 10, 0, tzinfo=UTC)
FACTS_CA = make("facts", is_ca=True)


def identity(folder: Path, made: Made, certificate: Made | None = None) -> SigningSettings:
    """The files of a signer."""
    key_file, certificate_file = folder / "s.key", folder / "s.pem"
    key_file.touch(mode=0o600)
    key_file.write_bytes(made.key_pem)
    certificate_file.write_bytes((certificate or made).pem)
    return SigningSettings(key_file, certificate_file, compromised_file=folder / "compromised.toml")


def test_our_identity_is_key_and_certificate(tmp_path: Path) -> None:
    """Key and certificate are loaded together; without them nothing is signed."""
    made = make("plant-a", FACTS_CA)
    loaded = load_identity(identity(tmp_path, made), "plant-a")
    assert loaded is not None
    assert (loaded.key.public_bytes, loaded.certificate) == (made.key.public_key().public_bytes_raw(), made.der)
    assert load_identity(SigningSettings(), "plant-a") is None


def test_a_node_that_is_not_named_like_its_zone_has_two_certificates(tmp_path: Path) -> None:
    """One of the zone, for facts, and one of the node, for messages, both of one key, in any order. A missing one is
    named, with what to do."""
    zone = make("plant-a", FACTS_CA)
    node = make("plant-a-2", FACTS_CA, key=zone.key)
    settings = identity(tmp_path, zone)
    for order in ((zone, node), (node, zone)):
        (tmp_path / "s.pem").write_bytes(b"".join(certificate.pem for certificate in order))
        loaded = load_identity(settings, "plant-a", "plant-a-2")
        assert loaded is not None
        assert (loaded.certificate, loaded.message_certificate) == (zone.der, node.der)
    alone = load_identity(settings, "plant-a", "plant-a")
    assert alone is not None
    assert (alone.certificate, alone.message_certificate) == (zone.der, zone.der)
    for kept, lacks in ((zone, "plant-a, not plant-a-2"), (node, "plant-a-2, not plant-a")):
        (tmp_path / "s.pem").write_bytes(kept.pem)
        with pytest.raises(SigningError, match=f"is for zone {lacks}$") as caught:
            load_identity(settings, "plant-a", "plant-a-2")
        assert "bsfg pki signer request" in caught.value.hint
    (tmp_path / "s.pem").write_bytes(zone.pem + make("plant-a-2", FACTS_CA).pem)
    with pytest.raises(SigningError, match="names key"):
        load_identity(settings, "plant-a", "plant-a-2")


def test_an_identity_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Another zone's certificate, another key's, one for TLS, and a file that is none."""
    made = make("plant-a", FACTS_CA)
    with pytest.raises(SigningError, match="is for zone plant-a, not idmz"):
        load_identity(identity(tmp_path, made), "idmz")
    with pytest.raises(SigningError, match=r"names key [0-9a-f]{16}, the key is"):
        load_identity(identity(tmp_path, made, make("plant-a", FACTS_CA)), "plant-a")
    with pytest.raises(SigningError, match="not for signing facts"):
        load_identity(identity(tmp_path, made, make("plant-a", usages=(), key=made.key)), "plant-a")
    settings = identity(tmp_path, made)
    (tmp_path / "s.pem").write_text("hello")
    with pytest.raises(SigningError, match="not a certificate"):
        load_identity(settings, "plant-a")


def test_no_damage_of_a_certificate_is_more_than_an_error(tmp_path: Path) -> None:
    """Whatever the disk has made of a signer's certificate, or of an authority's: it is refused, or proves nothing."""
    made = make("plant-a", FACTS_CA)
    settings = replace(identity(tmp_path, made), facts_ca_file=tmp_path / "ca.pem")
    for der, file in ((made.der, settings.certificate_file), (FACTS_CA.der, settings.facts_ca_file)):
        (tmp_path / "ca.pem").write_bytes(FACTS_CA.pem)
        assert file is not None
        for at in range(len(der)):
            text = base64.encodebytes(der[:at] + bytes([der[at] ^ 1]) + der[at + 1 :]).decode()
            file.write_text(f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n")
            with suppress(SigningError):
                assert load_identity(settings, "plant-a") is not None
                assert signer_of(made.der, load_trust(settings, ()), 0) is not None


def test_trust_is_read_from_the_files(tmp_path: Path) -> None:
    """Authorities, pins and compromised keys arrive in one record."""
    ca_file, compromised = tmp_path / "facts-ca.pem", tmp_path / "compromised.toml"
    ca_file.write_bytes(FACTS_CA.pem)
    compromised.write_text(compromises_text([Compromise(b"12345678", T, "stolen")]))
    pin = bytes(range(32))
    origins = [OriginSettings("plant-a", pinned=(pin.hex(":").upper(),)), OriginSettings("plant-b", "off")]
    trust = load_trust(SigningSettings(facts_ca_file=ca_file, compromised_file=compromised), origins)
    assert list(trust.anchors) == [FACTS_CA.certificate]
    assert trust.pins == {"plant-a": frozenset({pin})}
    assert trust.compromised_since_ms == {b"12345678": round(T.timestamp() * 1000)}


def test_a_tls_authority_is_refused_as_an_anchor(tmp_path: Path) -> None:
    """An operator who names the authority of the zones is told which file is wanted."""
    file = tmp_path / "ca.pem"
    file.write_bytes(FACTS_CA.pem + make("zones", is_ca=True, usages=(), key=p256()).pem)
    with pytest.raises(SigningError, match="not a facts authority") as caught:
        load_trust(SigningSettings(facts_ca_file=file, compromised_file=tmp_path / "none"), [])
    assert "bsfg pki signer ca" in caught.value.hint


def test_compromises_are_written_and_read(tmp_path: Path) -> None:
    """What is written is read back, in any script; of one key the earliest time counts."""
    file = tmp_path / "compromised.toml"
    assert read_compromises(file) == []
    later, other = Compromise(b"12345678", T.replace(hour=11)), Compromise(b"abcdefgh", T, 'of "press 1" 𠮷\n')
    file.write_text(compromises_text([later, other, Compromise(b"12345678", T), later]))
    assert read_compromises(file) == [Compromise(b"12345678", T), other]


@pytest.mark.parametrize(
    "text, why",
    [
        ("compromised = 3", "must be at most"),
        ("[[compromised]]\nkey_id = '0011223344556677'", "needs key_id and since"),
        ("[[compromised]]\nkey_id = 12\nsince = 2026-01-01T00:00:00Z", "needs key_id and since"),
        ("[[compromised]]\nkey_id = 'zz'\nsince = 2026-01-01T00:00:00Z", "needs key_id and since"),
        ("[[compromised]]\nkey_id = '00'\nsince = 2026-01-01T00:00:00Z", "has 16 hex digits"),
        ("[[compromised]]\nkey_id = '0011223344556677'\nsince = 2026-01-01T00:00:00", "a time with its time zone"),
        ("[[compromised]]\nkey_id = '0011223344556677'\nsince = 'now'", "a time with its time zone"),
        ("[[compromised", "is not TOML"),
        ("[[compromised]]\nkey_id = '0011223344556677'\nsince = 2026-01-01T00:00:00Z\n" * 1001, "must be at most 1000"),
        ("compromised = [1]", "needs key_id and since"),
    ],
)
def test_no_entry_is_left_out_silently(tmp_path: Path, text: str, why: str) -> None:
    """A list with one entry that cannot be understood is refused as a whole."""
    file = tmp_path / "compromised.toml"
    file.write_text(text)
    with pytest.raises(SigningError, match=why):
        read_compromises(file)


def test_a_list_that_cannot_be_looked_for_is_not_empty(tmp_path: Path) -> None:
    """As in a folder that this user may not enter."""
    (tmp_path / "loop").symlink_to("loop")
    for name in ("loop", "x" * 300):
        with pytest.raises(SigningError, match=name):
            read_compromises(tmp_path / name)


def problems_of(**sections: object) -> dict[str, str]:
    """Path -> why, of a configuration that must be refused."""
    with pytest.raises(ConfigError) as caught:
        read({"node": {"zone": "plant-a"}, **sections}, Path("/etc/bsfg/node.toml"))
    return {problem.path: problem.why for problem in caught.value.problems}


def test_the_settings_are_checked_at_once() -> None:
    """Half an identity, a bad pin, a pin that nothing checks, a rule for our own zone, and a demand that nothing could
    meet are reported together. Certificates of our own former keys may be pinned."""
    pin = "00" * 32
    found = problems_of(
        signing={"key_file": "s.key"},
        origin=[
            {"zone": "idmz", "signatures": "required"},
            {"zone": "plant-a"},
            {"zone": "plant-b", "pinned": ["abc"]},
            {"zone": "plant-c", "pinned": [pin], "signatures": "off"},
            {"zone": "plant-b", "signatures": "always"},
        ],
    )
    assert set(found) == {"signing.key_file", "origin[2].pinned", "origin[3].pinned", "origin[4].signatures"}
    own = {"zone": "plant-a", "signatures": "off"}
    found = problems_of(origin=[{"zone": "idmz", "signatures": "required"}, own, {"zone": "idmz"}])
    assert set(found) == {"origin[0].signatures", "origin[1].signatures", "origin[2].zone"}
    mine = read(
        {"node": {"zone": "plant-a"}, "origin": [{"zone": "plant-a", "pinned": [pin]}]}, Path("/etc/bsfg/node.toml")
    )
    assert mine.origin[0].pins == {bytes(32)}


def test_paths_start_at_the_folder_of_node_toml() -> None:
    """Also the default path of a section that is absent."""
    settings: NodeSettings = read({"node": {"zone": "plant-a"}}, Path("/etc/bsfg/node.toml"))
    assert settings.signing.compromised_file == Path("/etc/bsfg/compromised.toml")
    assert settings.origin == ()
