"""The signers that a node trusts: facts authorities and compromised keys, in files named by [signing] of node.toml, and
pins and rules of [[origin]]; and the node's own signing key. The files of authorities and compromised keys are read at
the start and again when they change, node.toml and the own key at a reload.

Unusable files change nothing: trusted signers, compromised keys and the own key stay as they are, and the reason is
logged and recorded once for each content.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future  # tidy: a type in a signature, nothing runs
from pathlib import Path

from agent.errors import StoreBusy
from agent.fact_store import FactStore, StoreReader
from agent.file_watch import PATIENT, WatchTimes, watch_files
from agent.replication.pulling import EvidenceFolder, MessageJudge, PageJudge, TrustPolicy
from agent.settings.node import NodeSettings
from agent.signing.certificates import CertificateRefusal, SignerTrust, describe_signer
from agent.signing.chains import Rule
from agent.signing.files import load_identity, load_trust
from agent.signing.keys import SigningError
from agent.signing.records import RecordSigner

log = logging.getLogger(__name__)


def requests_signer(settings: NodeSettings) -> RecordSigner | None:
    """This node's signing key, for a command. None if there is none or it cannot be used, which opening the store
    reports."""
    try:
        return load_identity(settings.signing, settings.node.zone, settings.node.name)
    except SigningError:
        return None


class TrustFiles:
    """Keeps `judge`, which judges what peers send, and the store up to date with the files of [signing] and
    [[origin]]."""

    def __init__(self, settings: NodeSettings, store: FactStore, times: WatchTimes = PATIENT) -> None:
        self._settings, self._store, self._times = settings, store, times
        policy = TrustPolicy(
            rules=_rules(settings),
            own_zone=settings.node.zone,
            own_certificates=_certificates_of(store.signer),
            own_node=settings.node.name,
        )
        self.judge = PageJudge(store, policy, EvidenceFolder(settings.node.state_dir / "declined"))
        self._read: bytes | None = None  # digest of the files that were read last
        self._trust: SignerTrust | None = None  # what is in force; None before any file could be used

    @classmethod
    def opened(cls, settings: NodeSettings, store: FactStore) -> TrustFiles:
        """An instance that has read its files."""
        found = cls(settings, store)
        with contextlib.suppress(StoreBusy):  # the first check does it
            found.read(is_start=True)
        return found

    @property
    def files(self) -> list[Path]:
        """The files, whether they exist or not."""
        signing = self._settings.signing
        return [signing.compromised_file, *([signing.facts_ca_file] if signing.facts_ca_file else [])]

    def check(self, settings: NodeSettings) -> RecordSigner | None:
        """Read the files of [signing] that a new node.toml names; returns the key to sign with. Raises SigningError,
        also for a new key with which receivers would now refuse all facts."""
        trust = load_trust(settings.signing, settings.origin)
        signer = load_identity(settings.signing, settings.node.zone, settings.node.name)
        if signer is None or _is_same(self._store.signer, signer):
            return signer
        now_ms = time.time_ns() // 1_000_000
        for certificate in _certificates_of(signer):
            named = describe_signer(certificate)
            assert not isinstance(named, CertificateRefusal), "load_identity refuses other certificates"
            if refusal := named.refuses(now_ms):
                why = f"{settings.signing.certificate_file} cannot be used now: {refusal}"
                raise SigningError(why, "set the clock (timedatectl), or renew it: bsfg pki signer request")
        if trust.is_suspect(signer.key_id, now_ms):
            why = f"{settings.signing.key_file}: key {signer.key_id.hex()} is compromised"
            raise SigningError(why, "make another: bsfg pki signer key --force")
        return signer

    async def sign_with(self, signer: RecordSigner | None) -> bool:
        """Put a key in force, for facts, requests and answers; False if it already is. Raises StoreError; then the key
        before stays."""
        if _is_same(self._store.signer, signer):
            return False
        await asyncio.wrap_future(self._store.set_signer(signer))
        self.judge.messages.sign_as(*_certificates_of(signer))
        log.info("signing_key_taken_over", extra={"key": None if signer is None else signer.key_id.hex()})
        return True

    def reconfigure(self, settings: NodeSettings) -> None:
        """Use a new node.toml. A busy store gets the list of compromised keys at the next check."""
        self._settings, self._read = settings, None
        with contextlib.suppress(StoreBusy):
            self.read()

    async def run(self) -> None:
        """Watch the files until cancelled."""
        await watch_files("trust files", lambda: self.files, self._check_files, self._times)

    def read(self, *, is_start: bool = False) -> None:
        """Read the files if they have changed. Raises StoreBusy; then call again."""
        digest = hashlib.sha256(b"".join(map(_digest, self.files))).digest()
        if digest == self._read:
            return
        try:
            trust = self._load()
        except SigningError as error:
            self._keep(error)
            self._read = digest
            return
        self._trust = trust
        self.judge.messages.set_trust(trust, _rules(self._settings))
        setting = self._store.set_compromised(trust.compromised_since_ms)
        if not is_start:
            counts = {"authorities": len(trust.anchors), "compromised": len(trust.compromised_since_ms)}
            log.info("signers_taken_over", extra=counts)
        self._read = digest
        setting.add_done_callback(self._read_again_unless_set)

    def _read_again_unless_set(self, setting: Future[None]) -> None:
        """Called by the store's writer. On a full disk the list is not set, and readers of the store would go on to
        show what a compromised key has signed as proven: the next check sets it."""
        if setting.exception() is not None:
            self._read = None

    def _load(self) -> SignerTrust:
        signing, before = self._settings.signing, self._trust
        if before is not None and before.compromised_since_ms:
            try:
                signing.compromised_file.stat()
            except OSError as error:
                count = len(before.compromised_since_ms)
                raise SigningError(
                    f"{signing.compromised_file} is gone ({error.strerror}); it named {count} compromised keys",
                    "put it back: without it they are trusted again after a restart",
                ) from error
        return load_trust(signing, self._settings.origin)

    def _keep(self, error: SigningError) -> None:
        """Report files that cannot be used. The node goes on: facts that must be signed wait at the peer."""
        kept = "no signer is trusted" if self._trust is None else "the previous signers stay trusted"
        log.warning("signers_not_read", extra={"reason": f"{error}. {error.hint}", "in_force": kept})
        self._store.note_incident("signing", str(self.files[-1]), f"{kept}: {error}. {error.hint}")

    async def _check_files(self) -> float:
        with contextlib.suppress(StoreBusy):  # the next check does it
            self.read()  # two small files: reading them costs less than a thread
        return self._times.reread_s


def _rules(settings: NodeSettings) -> dict[str, Rule]:
    return {origin.zone: origin.signatures for origin in settings.origin}


def _is_same(before: RecordSigner | None, now: RecordSigner | None) -> bool:
    """Whether both are the same key with the same certificate, or both None."""
    if before is None or now is None:
        return before is now
    return (before.key_id, _certificates_of(before)) == (now.key_id, _certificates_of(now))


def _certificates_of(signer: RecordSigner | None) -> tuple[bytes, ...]:
    """The certificates of this node's key, each once."""
    return () if signer is None else tuple(dict.fromkeys((signer.certificate, signer.message_certificate)))


@contextlib.contextmanager
def command_judge(settings: NodeSettings) -> Iterator[MessageJudge]:
    """Judges answers for a command, by the rules of the node and by what its store has verified. Raises
    SigningError."""
    trust = load_trust(settings.signing, settings.origin)
    policy = TrustPolicy(trust, _rules(settings), settings.node.zone, own_node=settings.node.name)
    path = settings.node.store_file
    with contextlib.closing(StoreReader(path)) if path.exists() else contextlib.nullcontext() as held:
        yield MessageJudge(policy, held)


def _digest(file: Path) -> bytes:
    """The digest of one file; zeros if it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).digest()
    except OSError:
        return bytes(32)
