"""Keys that sign facts where they are recorded, and the certificates that name the zone of such a key.

A zone signs the heads of its chains with an Ed25519 key of its own, which serves no other purpose. Receivers accept the
key by a signer certificate: issued by a facts authority that the operator trusts, or pinned by its fingerprint. A TLS
certificate is never accepted as a signer certificate, nor the other way round (DESIGN.md).

`keys` signs and verifies bytes; `certificates` decides whose key a certificate names; `settings` declares [signing] and
[[origin]] of node.toml; `files` reads the files that they name.
"""

from agent.signing.certificates import (
    CERTIFICATE_BYTES_MAX,
    FACT_SIGNING,
    Refusal,
    RefusalReason,
    Signer,
    SignerTrust,
    describe_signer,
    refuse_anchor,
    signer_of,
)
from agent.signing.errors import SigningError
from agent.signing.files import Compromise, compromises_text, load_identity, load_key, load_trust, read_compromises
from agent.signing.keys import KEY_ID_BYTES, SIGNATURE_BYTES, SignerPublic, SigningKey, key_id_of
from agent.signing.settings import OriginSettings, SigningSettings
