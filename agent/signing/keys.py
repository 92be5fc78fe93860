"""Core: Ed25519 keys that sign facts: the private key of this node and the public keys of all zones.

Ed25519 needs no randomness to sign, so equal bytes give equal signatures, and a gateway with a poor random generator
cannot leak its key. `files.load_key` reads the private key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from agent.errors import BsfgError
from agent.signing.records import KEY_ID_BYTES
from agent.signing.x509_parts import key_pem

SIGNATURE_BYTES = 64
PUBLIC_BYTES = 32


class SigningError(BsfgError):
    """A signing key, signer certificate or list of compromised keys cannot be used: a file is missing, malformed,
    readable by others, or of the wrong kind. The operator acts, as `hint` says; no retry."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint


def key_id_of(public_bytes: bytes) -> bytes:
    """A hint by which the key of a signature is looked up: 8 bytes of the SHA-256 of the raw public key. It proves
    nothing: a signature counts only under a key whose certificate is trusted."""
    return hashlib.sha256(public_bytes).digest()[:KEY_ID_BYTES]


class SignerPublic:
    """The public half of a signing key: 32 raw bytes."""

    __slots__ = ("_key", "key_id", "public_bytes")

    def __init__(self, public_bytes: bytes) -> None:
        """Raises SigningError for anything but 32 bytes."""
        if len(public_bytes) != PUBLIC_BYTES:
            raise SigningError(f"a public key of {len(public_bytes)} bytes", f"an Ed25519 key has {PUBLIC_BYTES}")
        self.public_bytes = public_bytes
        self.key_id = key_id_of(public_bytes)
        self._key = Ed25519PublicKey.from_public_bytes(public_bytes)

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Whether `signature` is this key's signature of exactly these bytes; False for a malformed signature."""
        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SignerPublic) and other.public_bytes == self.public_bytes

    def __hash__(self) -> int:
        return hash(self.public_bytes)

    def __repr__(self) -> str:
        return f"SignerPublic({self.key_id.hex()})"


class SigningKey:
    """The private key with which this node signs. Its repr names the key id only."""

    __slots__ = ("_key", "public")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._key = private
        self.public = SignerPublic(private.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> SigningKey:
        """A new key from the operating system's random generator."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, data: bytes, name: str) -> SigningKey:
        """The key in PEM data, called `name` in errors. Raises SigningError for a key with a password or of another
        kind."""
        try:
            key = serialization.load_pem_private_key(data, password=None)
        except TypeError as error:
            hint = f"a node starts unattended; remove it: openssl pkey -in {name} -out NEW"
            raise SigningError(f"{name} is protected by a password", hint) from error
        except (ValueError, UnsupportedAlgorithm) as error:
            raise SigningError(f"{name} is not a private key in PEM form", "make one: bsfg pki signer key") from error
        if not isinstance(key, Ed25519PrivateKey):
            hint = "facts are signed with a key of their own: bsfg pki signer key"
            raise SigningError(f"{name} is not an Ed25519 key", hint)
        return cls(key)

    @property
    def key_id(self) -> bytes:
        """8 bytes; see `key_id_of`."""
        return self.public.key_id

    @property
    def public_bytes(self) -> bytes:
        """The raw public key, 32 bytes."""
        return self.public.public_bytes

    @property
    def private(self) -> Ed25519PrivateKey:
        """For signing certificates and requests."""
        return self._key

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes, 64 bytes."""
        return self._key.sign(data)

    def pem(self) -> bytes:
        """The private key as PKCS#8 in PEM, without a password."""
        return key_pem(self._key)

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id.hex()})"


@dataclass(frozen=True, slots=True)
class ZoneSigner:
    """Signs for this node: its key, and the certificate (DER) that names the key to receivers. A node that is not named
    like its zone has a second one, for what it says in its own name."""

    key: SigningKey
    certificate: bytes
    node_certificate: bytes = b""

    @property
    def message_certificate(self) -> bytes:
        """The certificate with requests and answers."""
        return self.node_certificate or self.certificate

    @property
    def key_id(self) -> bytes:
        """8 bytes; see `key_id_of`."""
        return self.key.key_id

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes, 64 bytes."""
        return self.key.sign(data)
