"""Shell: reads a node's facts over MQTT with mutual TLS, as another zone to which the node exports streams.

Reading registers and confirms nothing: each page is a FetchRange of its own, so any number of tasks read in parallel.
While a page becomes columns, the next one is fetched. A Python worker of Spark keeps its connection, with a client id
of its own, from one task to the next, because a broker's firewall counts new connections. The certificate files are
named by path, or as `spark-files:NAME` if `--files` distributes them.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyspark import SparkFiles

from agent.batch import Definitions
from agent.lease import LeaseClaim
from agent.pages import LackingDefinitions, Start
from agent.positions import Position
from agent.replication.mqtt import Access, PeerReply
from agent.replication.pki import PkiError, client_context, describe, load_certificates
from agent.replication.protocol.definition_fetch import DefinitionFetch
from agent.replication.protocol.errors import DefinitionsUnavailable, PeerRefused, ReplicationError, advice
from agent.replication.protocol.messages import (
    BoundsAnswer,
    ConfirmReceipt,
    CursorAnswer,
    GetBounds,
    GetCursor,
    ListStreams,
    LogPosition,
    Request,
    StreamsAnswer,
)
from agent.replication.pulling import MessageJudge, TrustPolicy
from agent.settings.host import host_and_port
from agent.settings.signing import SigningSettings
from agent.signing.certificates import SignerTrust
from agent.signing.files import load_trust
from agent.signing.keys import SigningError
from pyspark_bsfg.dictionary import Dictionary, Named
from pyspark_bsfg.errors import ConsumerRefused, FactsGone, NodeUnavailable, SparkError, StoreUnreadable, StreamUnknown
from pyspark_bsfg.options import NodeOptions
from pyspark_bsfg.pruning import Pruning
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.transports.conversation import Conversation
from pyspark_bsfg.transports.ports import Asked, Bounds, Page, Registration
from pyspark_bsfg.transports.proofs import Signers
from pyspark_bsfg.transports.range_pages import RangePages
from pyspark_bsfg.transports.registration import first_fetch, registration_of

SPARK_FILES = "spark-files:"


class _Known(NamedTuple):
    """Kept by a process from one task to the next: a connection, and definitions, which never change."""

    conversation: Conversation
    definitions: dict[str, dict[Definitions, Sequence[bytes]]]
    """All those up to the last one, by zone and last one."""


_unused: dict[NodeOptions, _Known] = {}


@dataclass(frozen=True, slots=True)
class MqttNode:
    """A zone's node, at a broker."""

    at: NodeOptions

    @contextmanager
    def opened(self) -> Iterator[MqttNodeSource]:
        """Connects at the first request. Raises NodeUnavailable for files that cannot be used."""
        at = self.at
        try:
            files = _local(at.ca_file), _local(at.cert_file), _private(_local(at.key_file))
            zone = _zone_of(files[1])
            client_context(*files)
            trust = _trust(at)
        except (PkiError, SigningError) as error:
            raise NodeUnavailable(str(error), error.hint) from error
        if (known := _unused.pop(at, None)) is None or not known.conversation.is_alive:
            access = Access("spark", zone, at.host, at.port, partial(client_context, *files))
            judge = MessageJudge(None if trust is None else TrustPolicy(trust))
            conversation = Conversation(access, at.peer, at.request_timeout_s, at.attempts, judge.refuses_answer)
            known = _Known(conversation, {})
        try:
            yield MqttNodeSource(self, known, zone, trust)
        finally:
            if _unused.setdefault(at, known) is not known:
                known.conversation.close()


class MqttNodeSource:
    """The facts that a node exports to the zone of our certificate; see `FactSource`."""

    def __init__(self, node: MqttNode, known: _Known, zone: str, trust: SignerTrust | None) -> None:
        self._at = node.at
        self._conversation, self._definitions = known
        self._zone = zone
        self._trust = trust

    @property
    def name(self) -> str:
        return f"{self._at.peer} at {host_and_port(self._at.host, self._at.port)}"

    @property
    def zone(self) -> str:
        return self._at.peer

    def bounds(self, stream: str, read: Position | None = None) -> Bounds:
        named = None if read is None else LogPosition.of(read)
        answer = self._ask(GetBounds(stream=stream, position=named)).answer
        assert isinstance(answer, BoundsAnswer), answer
        resolved = None if answer.resolved is None else answer.resolved.offset
        return Bounds(answer.end_life, answer.first_offset, answer.end_offset, self._at.peer, resolved=resolved)

    def marks(self, stream: str) -> Sequence[tuple[int, int]]:  # noqa: ARG002
        raise AssertionError("the options refuse time ranges: the protocol has no marks")

    def matching(self, asked: Asked, pruning: Pruning, dictionary: Dictionary) -> Iterator[OffsetRange]:  # noqa: ARG002
        """By offset only: the protocol has no summaries. A batch that a filter excludes is skipped unopened after it
        has arrived."""
        first, last = max(asked.offsets.first, pruning.offsets[0]), min(asked.offsets.last, pruning.offsets[1])
        yield from [OffsetRange(first, last)] * (first <= last)

    def counts(self, asked: Asked) -> None:
        """Unknown: the protocol has no summaries."""

    def pages(self, asked: Asked, dictionary: Dictionary, *, needs_proofs: bool) -> Iterator[Page]:  # noqa: ARG002
        """Facts are verified if the reader was given the certificate of a facts authority."""
        signers = None
        if needs_proofs and self._trust is not None:
            signers = Signers(self._trust, time.time_ns() // 1_000_000)
        pages = RangePages(self.name, self._at.peer, asked, signers)
        fetched = None if pages.is_done else self._conversation.ask(pages.request())
        while fetched is not None:
            reply = self._answer_of(fetched)
            page = pages.take_answer(reply.answer, reply.batches)
            fetched = None if pages.is_done else self._conversation.ask(pages.request())  # while this one is decoded
            yield page

    def define(self, dictionary: Dictionary, named: Named) -> None:
        """Ask the node for what a batch names, after what has come before."""
        zone, wanted = named
        chains = self._definitions.setdefault(zone, {})
        for end, bodies in chains.items():
            if not dictionary.has(named) and not dictionary.has((zone, end)):
                dictionary.put((zone, end), bodies)
        if dictionary.has(named) or not wanted.count:
            return
        fetch = DefinitionFetch([LackingDefinitions(zone, wanted, list(reversed(chains)))])
        while (request := fetch.request()) is not None:
            reply = self._ask(request)
            try:
                complete = fetch.take_answer(reply.answer, reply.batches)
            except DefinitionsUnavailable as error:
                raise StoreUnreadable(f"{self.name}: {error}", "run bsfg store verify on the node") from error
            for chain in complete:
                chains[wanted] = [*chains.pop(chain.after, ()), *chain.bodies]
        dictionary.put(named, chains[wanted])

    def cursor(self, consumer: str) -> int | None:
        try:
            answer = self._ask(GetCursor(consumer_name=consumer)).answer
        except ConsumerRefused as error:
            if error.code == "unknown_consumer":
                return None
            raise
        assert isinstance(answer, CursorAnswer), answer
        return answer.frontier

    def register(self, consumer: str, stream: str, start: Start, claim: LeaseClaim) -> Registration:
        """The holder of the lease is then our connection, and its epoch proves the claim on others."""
        return registration_of(self._ask(first_fetch(consumer, stream, start, claim)).answer)

    def confirm(self, consumer: str, offset: int, life: str, claim: LeaseClaim) -> None:
        if offset > 0:
            self._ask(ConfirmReceipt(consumer_name=consumer, offset=offset, life=life, lease=claim.epoch or None))

    def _ask(self, request: Request) -> PeerReply:
        return self._answer_of(self._conversation.ask(request))

    def _answer_of(self, asked: Future[PeerReply]) -> PeerReply:
        """The answer to a request. Raises SparkError."""
        try:
            return asked.result()
        except PeerRefused as error:
            raise self._refused(error) from error
        except ReplicationError as error:
            tried = f"{self.name}, as zone {self._zone}, {self._at.attempts} times"
            raise NodeUnavailable(f"no answer from {tried}: {error}") from error

    def _refused(self, error: PeerRefused) -> SparkError:
        """The error to raise for an error answer; for an unknown stream it names the exported ones."""
        what = f"{self.name}: {error.message.rstrip('. ')}"
        match error.code:
            case "stream_not_exported":
                answer = self._ask(ListStreams()).answer
                assert isinstance(answer, StreamsAnswer), answer
                names = ", ".join(stream.name for stream in answer.streams) or "nothing"
                return StreamUnknown(f"{what}; exported to {self._zone}: {names}", error.hint)
            case "life_unknown":
                return FactsGone(what, "plan the read again: the store was put back to an older copy")
            case code if "consumer" in code or code in {"fenced", "lease_unknown"}:
                return ConsumerRefused(what, error.hint, code)
        return NodeUnavailable(advice(f"{what} ({error.code})", error.hint))


def _local(file: str) -> Path:
    """The path of a file on this host."""
    name = file.removeprefix(SPARK_FILES)
    if name == file:
        return Path(file)
    found = Path(SparkFiles.get(name))
    # The process that plans a stream gets a folder of its own, which is empty; the files of --files are in its parent.
    above = found.parents[1] / name
    return above if above.exists() and not found.exists() else found


def _private(key_file: Path) -> Path:
    """A key file that others cannot read. Files of `--files` have execute bits for others, which `client_context`
    refuses."""
    try:
        mode = key_file.stat()
        if stat.S_IMODE(mode.st_mode) & 0o077 == 0o011 and mode.st_uid == os.geteuid():
            key_file.chmod(0o600)
    except OSError as error:
        raise PkiError(f"{key_file}: {error.strerror}", "name the file by keyFile, or bring it with --files") from error
    return key_file


def _zone_of(cert_file: Path) -> str:
    """The zone that a certificate names, which is our user name at the broker."""
    zone = describe(load_certificates(cert_file)[0], datetime.now(UTC)).zone
    if not zone:
        raise PkiError(f"{cert_file} names no zone", "use a certificate made by bsfg pki issue ZONE")
    return zone


def _trust(at: NodeOptions) -> SignerTrust | None:
    """The signers that the reader trusts; None if no facts authority is given."""
    if not at.facts_ca_file:
        return None
    compromised = _local(at.compromised_file) if at.compromised_file else Path(os.devnull)
    return load_trust(SigningSettings(facts_ca_file=_local(at.facts_ca_file), compromised_file=compromised), ())
