"""A store that is not the one its peers know: opening, epochs, witness, quarantine, high-water marks, reseal, and the scrub."""

from agent.fact_store.divergence.handed import Handed
from agent.fact_store.divergence.high_water import Seen
from agent.fact_store.divergence.history_check import contradiction
from agent.fact_store.divergence.opening import migrate_store, open_writer, peer_is_ahead, require_new_epoch
from agent.fact_store.divergence.scrub import Upkeep
from agent.fact_store.divergence.witness import files_set_aside, mark_suspect

__all__ = [
    "Handed",
    "Seen",
    "Upkeep",
    "contradiction",
    "files_set_aside",
    "mark_suspect",
    "migrate_store",
    "open_writer",
    "peer_is_ahead",
    "require_new_epoch",
]
