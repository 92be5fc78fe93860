"""Integrity of stored facts: verification of a whole store, the register of damage found by readers, and repair from a
peer's copy."""

from agent.fact_store.integrity.damage_registry import DamageRegistry
from agent.fact_store.integrity.repair import damaged_batches, repair_batches, repair_definitions
from agent.fact_store.integrity.row_checks import Damage
from agent.fact_store.integrity.verify import VerifyCounts, verify_store
