"""[signing] and [[origin]] of node.toml: the key of this node, and which signatures it demands of other zones.

Checked when the file is read, without opening the named files; `agent.signing.files` opens them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent.message import ZONE

PINS_MAX = 16
"""Pinned certificates of one zone: the present one, the next, and those of former years."""

_PIN = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class SigningSettings:
    """[signing]: the key with which this node signs its facts, and the authorities whose signers it trusts.

    Without `key_file` this node signs nothing. `compromised_file` may be missing; `bsfg pki signer compromise` writes
    it.
    """

    key_file: Path | None = None
    certificate_file: Path | None = None
    facts_ca_file: Path | None = None
    compromised_file: Path = Path("compromised.toml")

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.key_file is None and self.certificate_file is not None:
            yield "certificate_file", "has no key_file; name the key made by bsfg pki signer key, or remove this"
        if self.certificate_file is None and self.key_file is not None:
            yield "key_file", "has no certificate_file, without which no receiver can verify; name both or neither"


@dataclass(frozen=True, slots=True)
class OriginSettings:
    """[[origin]]: what is demanded of the facts of one zone, whichever peer brings them.

    `required`: facts without a valid signature are refused. `if_present`: they are accepted until the zone's first
    valid signature, and refused from then on. `off`: signatures are stored and not checked. `pinned`: the SHA-256
    fingerprints of the only signer certificates accepted for the zone; without any, the facts authorities decide.
    """

    zone: str
    signatures: Literal["required", "if_present", "off"] = "if_present"
    pinned: tuple[str, ...] = ()

    def problems(self) -> Iterator[tuple[str, str]]:
        if not ZONE.fullmatch(self.zone):
            yield "zone", f"{self.zone!r} is not a zone (1 to 32 of a-z, 0-9 and -)"
        if wrong := next((pin for pin in self.pinned if not _PIN.fullmatch(_plain(pin))), None):
            yield "pinned", f"{wrong!r} is not a SHA-256 of 64 hex digits; bsfg pki signer pin prints the line"
        if len(self.pinned) > PINS_MAX:
            yield "pinned", f"at most {PINS_MAX} certificates of one zone"
        if self.pinned and self.signatures == "off":
            yield "pinned", 'has no effect with signatures = "off"; remove one of the two'

    @property
    def pins(self) -> frozenset[bytes]:
        """The fingerprints as bytes."""
        return frozenset(bytes.fromhex(_plain(pin)) for pin in self.pinned)


def _plain(fingerprint: str) -> str:
    """A fingerprint in lower case without colons; openssl prints it with colons and capitals."""
    return fingerprint.replace(":", "").lower()
