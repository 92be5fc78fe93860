"""What a store says of itself, as facts in its own log: what it forgot, what the disk damaged, that it began anew. Core: no IO.

An incident row stays on the gateway; a fact travels upward with the rest, so that the zone which misses data is told by the
data. A notice goes into the stream it is about, in the transaction that does what it tells. Its id follows from what happened,
so that telling it twice stores it once.

    predicate           subject                     said when
    ------------------  --------------------------  ---------------------------------------------------------------
    facts_expired       stream:<zone>/<stream>      facts went that somebody had not confirmed (time to live, full)
    facts_damaged       stream:<zone>/<stream>      a batch no longer reads as it was sealed
    facts_repaired      stream:<zone>/<stream>      a damaged batch was put back from a peer, at its old offsets
    facts_refused       stream:<zone>/<stream>      a peer has other facts under the same sequences, which fit nowhere here
    facts_uncompared    stream:<zone>/<stream>      a peer may have others than were here, which were released before
    store_quarantined   store:<zone>                a file that could not be used was set aside
    epoch_began         store:<zone>                this store went on under a new epoch
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.batch import Origin
from agent.message import JSON_INTEGER_MAX, Envelope, Fact, Message, canonical_json

OPERATIONAL_STREAM = "facts.operational"  # where a store tells what concerns all of its streams
EVERYBODY = "*"


def stream_fact(
    origin: Origin, stream: str, predicate: str, about: Mapping[str, object], key: str, now_unix_ms: int
) -> Message:
    """A notice about one stream; `key` tells it apart from others of its predicate in this epoch."""
    return _notice(origin, f"stream:{origin.zone}/{stream}", predicate, {"stream": stream, **about}, key, now_unix_ms)


def store_fact(origin: Origin, predicate: str, about: Mapping[str, object], key: str, now_unix_ms: int) -> Message:
    """A notice about the store as a whole; it goes into `OPERATIONAL_STREAM`."""
    return _notice(origin, f"store:{origin.zone}", predicate, about, key, now_unix_ms)


def _notice(
    origin: Origin, subject: str, predicate: str, about: Mapping[str, object], key: str, now_unix_ms: int
) -> Message:
    message_id = f"{predicate}:{origin.epoch.hex()}:{key}"
    envelope = Envelope(message_id, origin.zone, EVERYBODY, now_unix_ms)
    return Message(envelope, Fact(subject, predicate, canonical_json(_plain(about))))


def _plain(value: object) -> object:
    """The same with numbers that JSON cannot hold exactly as text: what is told of damage may come from where the damage is."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, int) and abs(value) > JSON_INTEGER_MAX:
        return str(value)
    return value
