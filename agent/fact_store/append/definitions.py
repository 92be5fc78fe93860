"""Tag definitions: defined here, or received before the batches that need them.

A definition is named by its zone and its digest, which covers those before it. Each batch of samples names the last one
that it needs, so definitions are received as a chain from some that are held, or from none, up to those that a batch
names; nothing else proves them. A batch whose definitions are not held is not stored, because its facts could not be
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from agent.batch import Definitions
from agent.fact_store.core import FactsRefused, StoreDamaged
from agent.fact_store.sqlite import Transaction
from agent.message import MessageError, TagDefinition
from agent.pages import DefinitionChain, LackingDefinitions

HELD_NAMED_MAX = 4
"""Definitions held that are named to a peer, which sends those that follow one of them."""
CHAIN_BYTES_MAX, DEFINITION_OVERHEAD_BYTES = 18 * 1024 * 1024, 192
"""Of the definitions that a batch needs, with what one takes besides its bytes. A receiver that is new gets all of them
before the first batch that needs them, and keeps 24 MiB until the chain is complete."""


def define(transaction: Transaction, zone: str, bodies: Sequence[bytes]) -> list[int]:
    """The numbers of definitions of an own zone. A definition that is not stored yet is stored under the next number.
    If those stored are damaged, new ones are begun; FactsRefused is raised if their numbers are in use."""
    catalog = transaction.catalog
    own = catalog.definitions_of(zone).definitions
    try:
        stored = transaction.definition_bodies(zone, own)
    except StoreDamaged:
        stored = []
    if len(stored) != own.count:  # also where an index does not find them: its pages are of another state than the rows
        if zone in catalog.numbered:  # samples under these numbers would be those of other tags
            raise FactsRefused(f"tag definitions of {zone} are damaged", "restart the node: it begins new ones")
        own, stored = Definitions(), []
    catalog.numbered |= {zone}
    known = {body: number for number, body in enumerate(stored, 1)}
    fresh = [body for body in dict.fromkeys(bodies) if body not in known]
    if fresh:
        known |= {body: number for number, body in enumerate(fresh, own.count + 1)}
        now = reduce(Definitions.extended, fresh, own)
        transaction.add_definitions(DefinitionChain(zone, now, own, fresh))
        transaction.set_own_definitions(zone, now)
    return [known[body] for body in bodies]


def lacking_definitions(
    transaction: Transaction, needed: Sequence[tuple[str, Definitions]]
) -> list[LackingDefinitions]:
    """Of the definitions that batches need and that are not held, those to be fetched: the most of each zone, which
    nearly always include its others."""
    wanted = dict[str, Definitions]()
    for zone, definitions in needed:
        if zone not in wanted or wanted[zone].count < definitions.count:
            wanted[zone] = definitions
    return [
        LackingDefinitions(zone, definitions, transaction.newest_definitions(zone, HELD_NAMED_MAX))
        for zone, definitions in wanted.items()
    ]


def store_definitions(transaction: Transaction, chains: Sequence[DefinitionChain]) -> int:
    """Store received definitions that are not held, or that are damaged; returns how many. Raises FactsRefused unless
    each chain leads from definitions held, or from none, to those wanted."""
    for chain in chains:
        _check(transaction, chain)
    return sum(transaction.add_definitions(chain) for chain in chains)


def _check(transaction: Transaction, chain: DefinitionChain) -> None:
    what = f"tag definitions {chain.after.count + 1} to {chain.wanted.count} of {chain.zone}"
    if chain.after.count and transaction.definition_id(chain.zone, chain.after.digest) is None:
        raise FactsRefused(f"{what}: those before them are not held", "fetch them again")
    if reduce(Definitions.extended, chain.bodies, chain.after) != chain.wanted:
        raise FactsRefused(f"{what} are not those that the batches name", "find out which zone has changed them")
    for number, body in enumerate(chain.bodies, chain.after.count + 1):
        try:
            TagDefinition.from_json(body)
        except MessageError as error:  # a digest proves bytes, not that they can be read
            raise FactsRefused(f"definition {number} of {chain.zone}: {error}") from error
    try:
        before = transaction.definition_bodies(chain.zone, chain.after) if chain.after.count else []
    except StoreDamaged as error:
        raise FactsRefused(str(error), "compare with a peer: bsfg peer compare --repair") from error
    size = sum(map(len, [*before, *chain.bodies])) + DEFINITION_OVERHEAD_BYTES * chain.wanted.count
    if size > CHAIN_BYTES_MAX:
        why = f"tag definitions of {chain.zone} would have {size} bytes, at most {CHAIN_BYTES_MAX}"
        raise FactsRefused(why, "find out what renames its tags, or invents them")
