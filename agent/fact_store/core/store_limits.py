"""The limits that the operator sets a store: of its file, of each stream, and of what each zone may hold back; and the
zones that two nodes record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agent.settings.store import StoreSettings, StreamSettings, ZoneLimit


class StoreLimits:
    """The limits in force. Each is replaced in one assignment, so the writer's thread sees either the old or the new
    one."""

    def __init__(
        self,
        settings: StoreSettings,
        streams: Mapping[str, StreamSettings],
        holds: Mapping[str, ZoneLimit],
        pair_zones: frozenset[str] = frozenset(),
    ) -> None:
        self.settings = settings
        self.pair_zones = pair_zones
        self.streams = dict(streams)
        self.holds = dict(holds)

    def replace(
        self,
        bytes_max: int,
        streams: Mapping[str, StreamSettings],
        holds: Mapping[str, ZoneLimit],
        pair_zones: frozenset[str],
    ) -> None:
        """Replace all but the other settings of the store."""
        self.settings, self.pair_zones = replace(self.settings, bytes_max=bytes_max), pair_zones
        self.streams, self.holds = dict(streams), dict(holds)

    def policy(self, stream: str) -> StreamSettings:
        """The settings of a stream."""
        streams = self.streams
        found = streams.get(stream)
        if found is None:
            found = streams[stream] = StreamSettings(stream)
        return found
