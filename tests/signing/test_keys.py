"""Signing keys: signatures that standard tools understand, key files that are refused, nothing secret in a repr."""

import hashlib
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from agent.signing.files import load_key
from agent.signing.keys import SIGNATURE_BYTES, SignerPublic, SigningError, SigningKey, key_id_of
from agent.signing.records import KEY_ID_BYTES
from tests.signing.signers import make, p256


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A key as the node keeps it."""
    file = tmp_path / "signer.key"
    file.touch(mode=0o600)
    file.write_bytes(SigningKey.generate().pem())
    return file


def test_a_loaded_key_signs_and_its_public_half_verifies(key_file: Path) -> None:
    """The same bytes give the same 64-byte signature, which the public half accepts for these bytes only."""
    key = load_key(key_file)
    signature = key.sign(b"record")
    assert (len(signature), signature) == (SIGNATURE_BYTES, load_key(key_file).sign(b"record"))
    public = SignerPublic(key.public_bytes)
    assert public == key.public
    assert public.verify(b"record", signature)
    assert not public.verify(b"tail", signature)
    assert not SigningKey.generate().public.verify(b"record", signature)
    assert key.key_id == public.key_id == hashlib.sha256(key.public_bytes).digest()[:KEY_ID_BYTES]
    assert key_id_of(key.public_bytes) == key.key_id


@given(st.binary(max_size=80))
def test_a_malformed_signature_is_false_not_an_error(signature: bytes) -> None:
    """Whatever stands in the place of a signature, `verify` answers."""
    assert not SigningKey.generate().public.verify(b"record", signature)


def test_openssl_verifies_our_signature(key_file: Path, tmp_path: Path) -> None:
    """The signature is plain Ed25519 (RFC 8032): another implementation accepts it, and refuses other bytes."""
    key = load_key(key_file)
    (tmp_path / "data").write_bytes(b"record")
    (tmp_path / "sig").write_bytes(key.sign(b"record"))
    subprocess.run(["openssl", "pkey", "-in", key_file, "-pubout", "-out", tmp_path / "pub"], check=True)
    words = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", tmp_path / "pub", "-rawin"]
    words += ["-in", tmp_path / "data", "-sigfile", tmp_path / "sig"]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    (tmp_path / "data").write_bytes(b"tail")
    assert subprocess.run(words, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize(
    "mode, is_good", [(0o400, True), (0o640, True), (0o644, False), (0o660, False), (0o602, False)]
)
def test_a_key_that_others_may_read_is_refused(key_file: Path, mode: int, is_good: bool) -> None:
    """Reading for the group is allowed, as for the key of TLS; anything more names the command that mends it."""
    key_file.chmod(mode)
    if is_good:
        assert load_key(key_file)
        return
    with pytest.raises(SigningError, match="accessible to others") as caught:
        load_key(key_file)
    assert caught.value.hint == f"run: chmod 0600 {key_file}"


def test_other_files_in_the_place_of_a_key_are_refused(key_file: Path) -> None:
    """No file, no key, another kind of key, one with a password, and a huge file are each named as what they are."""
    key = load_key(key_file)
    locked = key.private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    for data, why in (
        (b"-----BEGIN CERTIFICATE-----", "not a private key"),
        (make("plant-a", key=p256()).key_pem, "not an Ed25519 key"),
        (locked, "protected by a password"),
        (b"x" * 300_000, "larger than"),
    ):
        key_file.write_bytes(data)
        with pytest.raises(SigningError, match=why):
            load_key(key_file)
    with pytest.raises(SigningError, match="No such file"):
        load_key(key_file.with_name("missing"))
    with pytest.raises(SigningError, match="directory"):
        load_key(key_file.parent)


def test_nothing_secret_is_printed(key_file: Path) -> None:
    """A key that reaches a log line by mistake shows its id only."""
    key = load_key(key_file)
    assert repr(key) == f"SigningKey({key.key_id.hex()})"
    assert repr(key.public) == f"SignerPublic({key.key_id.hex()})"


def test_a_public_key_of_another_length_is_refused() -> None:
    """31 bytes are no key."""
    with pytest.raises(SigningError, match="31 bytes"):
        SignerPublic(bytes(31))
