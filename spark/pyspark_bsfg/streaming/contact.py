"""Shell: a store that is asked again and again by one process. A connection to a node is kept until something fails; a
file is opened anew each time, because a store that was replaced has the same name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from agent.errors import BsfgError
from pyspark_bsfg.transports import FactSource, Place, StoreFile


class Contact:
    """Not to be pickled once it was used."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._stack = ExitStack()
        self._source: FactSource | None = None

    @contextmanager
    def opened(self) -> Iterator[FactSource]:
        """The store, for a block. Raises SparkError."""
        if isinstance(self.place, StoreFile):
            with self.place.opened() as source:
                yield source
            return
        if self._source is None:
            self._source = self._stack.enter_context(self.place.opened())
        try:
            yield self._source
        except (BsfgError, OSError):
            self.close()
            raise

    def close(self) -> None:
        """Drop the connection; the next block makes another."""
        self._source = None
        self._stack.close()
