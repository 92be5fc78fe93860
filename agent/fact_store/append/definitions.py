"""Tag definitions: defined here, or received with the batches that need them.

They are numbered from 1 without gaps for each origin and never change; a changed tag gets a new number. Each batch of
samples carries the number of definitions that its origin had, and a running digest over them, so a received definition
is accepted only if the digest of a batch proves it. A batch that arrives without its definitions is refused, because
its facts could not be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.batch import Batch, Definitions, Kind, Origin
from agent.fact_store.log import DefinitionsMissing, FactsRefused, ForkError
from agent.fact_store.sqlite import Transaction
from agent.message import MessageError, TagDefinition
from agent.pages import ReceivedDefinition


def define(transaction: Transaction, bodies: Sequence[bytes]) -> list[int]:
    """The numbers of definitions in this store. A definition that is not stored yet is stored under the next number."""
    count = transaction.catalog.own_definitions().count
    known = {
        body: at + 1 for at, body in enumerate(transaction.definition_bodies(transaction.catalog.own_origin, 0, count))
    }
    fresh = list[bytes]()
    for body in bodies:
        if body not in known:
            fresh.append(body)
            known[body] = count + len(fresh)
    if fresh:
        transaction.add_definitions(transaction.catalog.own_origin, fresh)
    return [known[body] for body in bodies]


def check_readable(origin: Origin, number: int, body: bytes) -> None:
    """Raise FactsRefused for bytes that are not a tag definition: a digest proves bytes, not that they can be read."""
    try:
        TagDefinition.from_json(body)
    except MessageError as error:
        raise FactsRefused(f"definition {number} of {origin}: {error}") from error


def proven_definitions(
    transaction: Transaction, batches: Iterable[Batch], received: Iterable[ReceivedDefinition]
) -> dict[Origin, list[bytes]]:
    """The definitions to be stored with `batches`: those that are not stored yet, proven by the batches' digests.

    Raises DefinitionsMissing if some were not received, ForkError if they differ from what the origin defined,
    FactsRefused for bytes that are not a definition.
    """
    needed = {(batch.header.origin, batch.header.definitions) for batch in batches if batch.header.kind is Kind.SAMPLES}
    by_origin = dict[Origin, dict[int, bytes]]()
    for one in received:
        by_origin.setdefault(one.origin, {})[one.number] = one.body
    fresh = dict[Origin, list[bytes]]()
    for origin in {origin for origin, _ in needed}:
        ends = {definitions.count: definitions.digest for other, definitions in needed if other == origin}
        if len(ends) < sum(other == origin for other, _ in needed):
            raise ForkError(f"two batches of {origin} disagree on its tag definitions")
        if bodies := _fresh(transaction, origin, ends, by_origin.get(origin, {})):
            fresh[origin] = bodies
    return fresh


def _fresh(transaction: Transaction, origin: Origin, ends: dict[int, bytes], received: dict[int, bytes]) -> list[bytes]:
    """Definitions after those known of an origin, up to the highest number that one of its batches names."""
    number = transaction.catalog.origins.get(origin)
    known = transaction.catalog.definitions.get(number, Definitions()) if number is not None else Definitions()
    for count, digest in ends.items():
        if number is not None and count <= known.count and transaction.definition_digest(number, count) != digest:
            raise ForkError(f"{origin} defined its first {count} tags differently from what is held")
    bodies = list[bytes]()
    running = known
    for wanted in range(known.count + 1, max(ends) + 1):
        if wanted not in received:
            raise DefinitionsMissing(f"tag definition {wanted} of {origin} was not received; {known.count} are held")
        bodies.append(received[wanted])
        running = running.extended(received[wanted])
        if ends.get(wanted, running.digest) != running.digest:
            raise ForkError(
                f"tag definitions up to {wanted} of {origin} differ from those its batches were sealed with"
            )
    for number, body in enumerate(bodies, known.count + 1):
        check_readable(origin, number, body)
    return bodies
