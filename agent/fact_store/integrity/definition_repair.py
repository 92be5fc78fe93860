"""Repairs damaged tag definitions with a peer's copies: byte for byte as their zone defined them, or not at all.

Their digest, which a batch held here names, proves them. The damaged rows are not changed (see batch_repair.py). The
copies are stored in the table `repaired_definition`, which readers prefer.
"""

from __future__ import annotations

import sqlite3

from agent.fact_store.append import store_definitions
from agent.fact_store.core import FactsRefused
from agent.fact_store.sqlite import Transaction, is_damage
from agent.pages import DefinitionChain

INCIDENT = "definitions_repaired"


def repair_definitions(transaction: Transaction, *, stream: str, peer: str, chain: DefinitionChain) -> int:
    """Repair those of all definitions up to the wanted ones that are damaged or missing here; returns how many. Raises
    FactsRefused for other definitions; then nothing has changed."""
    try:
        count = store_definitions(transaction, [chain])
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        why = f"tag definitions of {chain.zone} can no longer be read: {error}"
        raise FactsRefused(why, "see bsfg store verify") from error
    if count:
        detail = f"{count} repaired from {peer}, which a batch of {stream} names"
        transaction.add_incident(INCIDENT, f"{chain.zone} 1 to {chain.wanted.count}", detail)
    return count
