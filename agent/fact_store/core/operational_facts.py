"""Operational facts: what a store records about itself in its own log, such as expired or damaged facts.
Core: no IO.

An incident stays on the gateway. An operational fact is replicated with the others, so a zone that misses data finds
the reason in the data. It is stored in the stream it concerns, in the same transaction as the change it reports. Its
message id is derived from the event, so a repeated event is stored once.

    predicate           subject                     recorded when
    ------------------  --------------------------  ---------------------------------------------------------------
    facts_expired       stream:<zone>/<stream>      facts that a consumer lacks expired (time to live, store full)
    facts_damaged       stream:<zone>/<stream>      a batch is found damaged
    facts_repaired      stream:<zone>/<stream>      a damaged batch was repaired from a peer, at its offsets
    facts_refused       stream:<zone>/<stream>      a peer has other facts under the same sequences of one life
    facts_declined      stream:<zone>/<stream>      facts of a peer that their origin did not prove, or that are unreadable
    heads_checkpointed  stream:<zone>/<stream>      once a day: the last sequence held of each origin, and its digest
    store_quarantined   store:<zone>                a file that could not be used was quarantined
    store_missing       store:<zone>                the store's file was gone, and a new store began
    store_restored      store:<zone>                the store was put back to a copy
    log_lost            store:<zone>                the end of the write-ahead log was lost
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.message import JSON_INTEGER_MAX, Envelope, Fact, Message, canonical_json

ALL_ZONES = "*"


def operational_fact(
    zone: str, stream: str | None, predicate: str, about: Mapping[str, object], key: str, now_unix_ms: int
) -> Message:
    """The fact about a stream, or about the store as a whole; `key` is unique among those of its predicate."""
    subject = f"store:{zone}" if stream is None else f"stream:{zone}/{stream}"
    content = _plain(about if stream is None else {"stream": stream, **about})
    envelope = Envelope(f"{predicate}:{key}", zone, ALL_ZONES, now_unix_ms)
    return Message(envelope, Fact(subject, predicate, canonical_json(content)))


def _plain(value: object) -> object:
    """The value with integers that JSON cannot hold exactly replaced by text: offsets of a damaged row may be any
    number."""
    if isinstance(value, Mapping):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, int) and abs(value) > JSON_INTEGER_MAX:
        return str(value)
    return value
