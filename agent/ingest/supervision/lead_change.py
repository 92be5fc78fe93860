"""Up to when another gateway of the zone recorded a source, when this one takes over. A core: no IO, no clock.

Times are on the clock of the source, if it is known, in ns since 1970.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from agent.ingest import quality
from agent.ingest.completeness import Stored
from agent.ingest.lifecycle import Newest
from agent.settings.sources import ModbusSourceSettings, SourceSettings


@dataclass(frozen=True, slots=True)
class EarlierLead:
    """Another gateway of the zone may have recorded until now. `complete_ns`: up to when all that it recorded is here,
    or declared missing, on our clock; None: not known."""

    complete_ns: int | None = None


def undelivered_ns(settings: SourceSettings) -> int:
    """How old a value may be that a gateway which ends has not received."""
    if isinstance(settings, ModbusSourceSettings) or settings.mode == "poll":
        return 0
    return (settings.sampling_interval_ms + 2 * settings.publishing_interval_ms) * 1_000_000


def led_until(
    lead: EarlierLead,
    own: Stored | None,
    newest: Collection[Newest],
    *,
    ahead_ns: int | None,
    undelivered_ns: int,
    now_ns: int,
) -> Stored | None:
    """Up to when all that the other gateway recorded is here; None if this one recorded later, or none did.

    `own`: where this node ended; `newest`: the newest sample here of each tag; `ahead_ns`: the clock of the source, of
    ours (None: not read yet); `now_ns`: on our clock. A gateway that had lost the source has recorded until then. Of
    one that failed while this one was new, only its samples tell.
    """
    newest_ns = max((found.good_ns for found in newest), default=0)
    if ahead_ns is None and own is not None:
        ahead_ns = own.ahead_ns
    if lead.complete_ns is not None:
        led_ns = lead.complete_ns + (ahead_ns or 0)
        if newest and all(found.sample.quality == quality.BAD_COMMUNICATION_ERROR for found in newest):
            led_ns = min([led_ns, *(found.sample.source_time_ns for found in newest)])
    elif newest_ns and own is None:
        led_ns = min(newest_ns, now_ns + (ahead_ns or 0))
    else:
        return None
    led = Stored(led_ns - undelivered_ns, ahead_ns)
    return led if own is None or own.complete_ns < led.complete_ns else None
