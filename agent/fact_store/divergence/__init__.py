"""Detects and repairs divergence: a file too damaged to use, and a store restored from an old copy that its peers have
read past.

Opening, epochs, witness, quarantine, high-water marks, comparison with a peer's claims, resealing, and the background
scrub.
"""

from agent.fact_store.divergence.high_water import ReadHighWater
from agent.fact_store.divergence.history_check import find_contradiction, lacks_batch
from agent.fact_store.divergence.new_epoch import begin_epoch_while_running
from agent.fact_store.divergence.opening import migrate_store, open_writer
from agent.fact_store.divergence.quarantine import mark_suspect, quarantined_files
from agent.fact_store.divergence.scrubber import Scrubber
from agent.fact_store.divergence.witness import LiveWitness
