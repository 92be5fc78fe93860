"""An authority's key in a security token or HSM, over PKCS#11: it is made there, signs there, and never leaves it.

In place of the key, `ca.key` holds the token's address, a PKCS#11 URI (RFC 7512) with its driver:

    pkcs11:token=site;object=zones-ca?module-path=/usr/lib/softhsm/libsofthsm2.so

The token's PIN takes the place of the passphrase and is stored nowhere. Needs the extra `pkcs11`, which no gateway has.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, encode_dss_signature

from agent.replication.pki.problem import PkiError

SCHEME = "pkcs11:"
_EXAMPLE = "pkcs11:token=site;object=zones-ca?module-path=/usr/lib/softhsm/libsofthsm2.so"


@dataclass(frozen=True, slots=True)
class TokenAddress:
    """Where a key is: the driver's library, the token's label, and the key's."""

    module: str
    token: str
    name: str


def parse_address(uri: str) -> TokenAddress:
    """The parts of a PKCS#11 URI. Raises PkiError."""
    path, _, query = uri.strip().removeprefix(SCHEME).partition("?")
    found = dict(part.partition("=")[::2] for part in (*path.split(";"), *query.split("&")))
    known = ("module-path", "token", "object")
    if not uri.startswith(SCHEME) or found.keys() != set(known) or not all(found.values()):
        raise PkiError(f"{uri.strip()[:200]!r} does not name a key in a token", f"write it as {_EXAMPLE}")
    return TokenAddress(*(urllib.parse.unquote(found[name]) for name in known))


class TokenKey(ec.EllipticCurvePrivateKey):
    """A P-256 private key in a token, with which cryptography signs certificates and lists."""

    def __init__(self, public: ec.EllipticCurvePublicKey, private: Any) -> None:
        self._public, self._private = public, private

    @property
    def curve(self) -> ec.EllipticCurve:
        return self._public.curve

    @property
    def key_size(self) -> int:
        return self._public.key_size

    def public_key(self) -> ec.EllipticCurvePublicKey:
        return self._public

    def sign(self, data: Any, signature_algorithm: ec.EllipticCurveSignatureAlgorithm) -> bytes:
        """Sign in the token. It gets the digest only, because not every token can hash."""
        from pkcs11 import Mechanism

        algorithm = signature_algorithm.algorithm
        assert not isinstance(algorithm, Prehashed), "certificates and lists are signed whole"
        digest = hashes.Hash(algorithm)
        digest.update(data)
        with _errors():
            raw = self._private.sign(digest.finalize(), mechanism=Mechanism.ECDSA)
        half = len(raw) // 2
        return encode_dss_signature(int.from_bytes(raw[:half]), int.from_bytes(raw[half:]))

    def exchange(self, algorithm: ec.ECDH, peer_public_key: ec.EllipticCurvePublicKey) -> NoReturn:  # noqa: ARG002
        raise _only_signs()

    def private_numbers(self) -> NoReturn:
        raise _only_signs()

    def private_bytes(self, *_: object) -> NoReturn:
        raise _only_signs()

    def __copy__(self) -> TokenKey:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TokenKey:
        return self


def make_key(uri: str, pin: bytes | None) -> TokenKey:
    """A new key in the token. Raises PkiError, also if a key of this name exists."""
    from pkcs11 import Attribute, KeyType
    from pkcs11.util.ec import encode_named_curve_parameters

    address = parse_address(uri)
    with _errors():
        session = _session(address, pin, is_writing=True)
        if _named(session, address):
            raise PkiError(
                f"the token {address.token} has a key {address.name} already", "choose another name: object=NAME"
            )
        curve = {Attribute.EC_PARAMS: encode_named_curve_parameters("secp256r1")}
        parameters = session.create_domain_parameters(KeyType.EC, curve, local=True)
        # Not extractable and sensitive, which some tokens do not choose by themselves.
        kept = {Attribute.EXTRACTABLE: False, Attribute.SENSITIVE: True}
        parameters.generate_keypair(store=True, label=address.name, private_template=kept)
        return _key(session, address)


def load_key(uri: str, pin: bytes | None) -> TokenKey:
    """The key in the token. Raises PkiError."""
    address = parse_address(uri)
    with _errors():
        return _key(_session(address, pin, is_writing=False), address)


def _key(session: Any, address: TokenAddress) -> TokenKey:
    from pkcs11 import ObjectClass
    from pkcs11.util.ec import encode_ec_public_key

    found = {key.object_class: key for key in _named(session, address)}
    if ObjectClass.PRIVATE_KEY not in found or ObjectClass.PUBLIC_KEY not in found:
        raise PkiError(f"the token {address.token} has no key {address.name}", "is it the right token?")
    public = serialization.load_der_public_key(encode_ec_public_key(found[ObjectClass.PUBLIC_KEY]))
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise PkiError(f"the key {address.name} is of a kind that is not supported", "use one of the curve P-256")
    return TokenKey(public, found[ObjectClass.PRIVATE_KEY])


def _named(session: Any, address: TokenAddress) -> list[Any]:
    from pkcs11 import Attribute

    return list(session.get_objects({Attribute.LABEL: address.name}))


def _session(address: TokenAddress, pin: bytes | None, *, is_writing: bool) -> Any:
    """A session, which lasts as long as the keys that came from it."""
    import pkcs11

    if pin is None:
        raise PkiError(f"the token {address.token} needs its PIN", "give it in --passphrase-file, or type it")
    token = pkcs11.lib(address.module).get_token(token_label=address.token)
    try:
        return token.open(rw=is_writing, user_pin=pin.decode(errors="replace"))
    except pkcs11.UserAlreadyLoggedIn:  # a login holds for all sessions of a process
        return token.open(rw=is_writing)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn an error of the token or its driver into a PkiError that names the likely reason."""
    try:
        import pkcs11
    except ModuleNotFoundError as error:
        hint = "on the authority's machine: pip install 'bsfg-agent[pkcs11]'"
        raise PkiError("keys in tokens need the package python-pkcs11", hint) from error
    reasons = {
        pkcs11.PinIncorrect: ("the PIN is wrong", "type it again; a token locks itself after some wrong ones"),
        pkcs11.PinLocked: ("the PIN is locked", "unlock the token with its maker's tool"),
        pkcs11.NoSuchToken: ("no token has this label", "plug it in; pkcs11-tool --list-slots shows labels"),
    }
    try:
        yield
    except pkcs11.PKCS11Error as error:
        if type(error) is pkcs11.PKCS11Error:  # from the library itself: the driver cannot be loaded
            raise PkiError(f"the token's driver cannot be used: {error}", "correct module-path") from error
        why, hint = reasons.get(type(error), (f"{type(error).__name__} {error}".strip(), "see the token's manual"))
        raise PkiError(f"the token refuses: {why}", hint) from error


def _only_signs() -> PkiError:
    return PkiError("the key stays in its token", "it only signs there")
