"""Core: which changes of a zone's state are told to people, and when: raised, repeated while it lasts, cleared.

A zone is told about once its alert has lasted `after_s`, so that what passes by itself wakes nobody, again when its
level is worse, when a further alert has lasted as long, and every `repeat_hours`, and when all are over. `NoticeCore`
holds what was told; the same rows give the same notices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from agent.health.problems import RANK
from agent.page.fleet import ZoneRow
from agent.page.words import moment

TOLD_MAX = 20
"""Zones named in one look; what hits more has one cause, and the rest is counted."""


class NoticeKind(Enum):
    """What is told."""

    RAISED = "raised"
    REPEATED = "repeated"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Notice:
    """One message to a person."""

    event: NoticeKind
    zone: str
    level: str
    what: str
    hint: str
    since_unix_ms: int
    more: int = 0
    """So many further zones changed in the same way."""

    @property
    def subject(self) -> str:
        """One line."""
        others = f" and {self.more:,} more zones" if self.more else ""
        if self.event is NoticeKind.CLEARED:
            return f"{self.zone}{others}: needs nobody any more"
        return f"{self.zone}{others}: {self.level}: {self.what}"


@dataclass(slots=True)
class _Told:
    since_unix_ms: int
    told_unix_ms: int = 0
    row: ZoneRow | None = None
    began: dict[str, int] = field(default_factory=dict)
    """Each of its alerts, and since when it is there."""
    named: set[str] = field(default_factory=set)
    """Those that a notice named or counted."""

    def look(self, row: ZoneRow, now_unix_ms: int, after_ms: float) -> list[tuple[str, str, str]]:
        """The alerts that have lasted and that no notice named or counted."""
        self.began = {name: self.began.get(name, now_unix_ms) for name, *_ in row.alerts}
        self.named &= self.began.keys()
        return [
            alert
            for alert in row.alerts
            if alert[0] not in self.named and now_unix_ms - self.began[alert[0]] >= after_ms
        ]


@dataclass(slots=True)
class NoticeCore:
    """Decides for one receiver. `zones`: those that it wants to hear of; none: all."""

    after_s: float
    repeat_hours: float
    zones: frozenset[str] = frozenset()
    _alerts: dict[str, _Told] = field(default_factory=dict)

    def decide(self, rows: Iterable[ZoneRow], now_unix_ms: int) -> list[Notice]:
        """What is to be told now."""
        found: dict[NoticeKind, list[Notice]] = {event: [] for event in NoticeKind}
        alerting = {row.zone: row for row in rows if row.alert and (not self.zones or row.zone in self.zones)}
        for zone, told in list(self._alerts.items()):
            if zone not in alerting:
                del self._alerts[zone]
                if told.told_unix_ms and told.row is not None:
                    over = replace(told.row, hint=f"it was, from {moment(_since(told.row, told))}: {told.row.what}")
                    found[NoticeKind.CLEARED].append(_notice(NoticeKind.CLEARED, over, now_unix_ms))
        for zone, row in alerting.items():
            told = self._alerts.setdefault(zone, _Told(now_unix_ms))
            is_due = now_unix_ms - told.since_unix_ms >= self.after_s * 1000
            repeat_ms = self.repeat_hours * 3_600_000
            further, said = told.look(row, now_unix_ms, self.after_s * 1000), row
            if (not told.told_unix_ms and is_due) or (told.row and RANK[row.level] > RANK[told.row.level]):
                found[NoticeKind.RAISED].append(_notice(NoticeKind.RAISED, row, _since(row, told)))
            elif told.told_unix_ms and further:
                name, what, hint = further[0]
                said = replace(row, what=what, hint=hint, alerts=tuple(further))
                found[NoticeKind.RAISED].append(_notice(NoticeKind.RAISED, said, told.began[name]))
            elif told.told_unix_ms and repeat_ms and now_unix_ms - told.told_unix_ms >= repeat_ms:
                found[NoticeKind.REPEATED].append(_notice(NoticeKind.REPEATED, row, _since(row, told)))
            else:
                continue
            told.told_unix_ms, told.row = now_unix_ms, row
            told.named |= {name for name, *_ in said.alerts}
        return [notice for event in NoticeKind for notice in _bounded(found[event])]


def _since(row: ZoneRow, told: _Told) -> int:
    """Since when a zone is at its level, as the page says it; if it does not, since it was first seen, which may be
    the start of the page."""
    return int(row.since_unix_ms or told.since_unix_ms)


def _notice(event: NoticeKind, row: ZoneRow, since_unix_ms: int) -> Notice:
    others = f" (and {len(row.alerts) - 1} more)" if len(row.alerts) > 1 else ""
    return Notice(event, row.zone, row.level.value, row.what + others, row.hint, since_unix_ms)


def _bounded(notices: list[Notice]) -> list[Notice]:
    """The notices, or the first alone with the number of the others."""
    if len(notices) <= TOLD_MAX:
        return notices
    first = notices[0]
    return [Notice(first.event, first.zone, first.level, first.what, first.hint, first.since_unix_ms, len(notices) - 1)]
