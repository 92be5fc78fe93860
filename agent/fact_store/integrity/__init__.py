"""Verification of a whole store, damage found while facts are read, and its repair from a peer's copy."""

from agent.fact_store.integrity.damage import Damages
from agent.fact_store.integrity.definition_repair import repair_definitions
from agent.fact_store.integrity.repair import damaged, note, repair
from agent.fact_store.integrity.verify import Damage
from agent.fact_store.integrity.verifying import Progress, Verified, verify_store

__all__ = [
    "Damage",
    "Damages",
    "Progress",
    "Verified",
    "damaged",
    "note",
    "repair",
    "repair_definitions",
    "verify_store",
]
