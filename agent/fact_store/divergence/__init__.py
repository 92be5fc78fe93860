"""A file too damaged to use, a store put back to an old copy, a lost log: what is found when a store is opened, said
and recorded; quarantine, the witness, and the background scrub.
"""

from agent.fact_store.divergence.opening import migrate_store, open_writer
from agent.fact_store.divergence.scrubber import IntegrityWatch, Scrubber
