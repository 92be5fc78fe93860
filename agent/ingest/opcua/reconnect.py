"""The reconnect of OPC 10000-4, 6.7, as a table: which step the next attempt begins with; and which of several
redundant servers it reaches (6.6.2).

    reactivate   a new channel, ActivateSession with the old token; the subscriptions live on
    transfer     a new session, TransferSubscriptions
    rebuild      everything anew, from the desired state

A step that the server refuses is followed by the next one. A life that was kept and brings no proof of life ends, and
the next attempt begins one step lower. A server that was restarted has nothing of ours: its sessions and subscriptions
with these numbers may be those of another client.

Redundant servers say by their ServiceLevel how well they serve their clients. The present one is kept as long as it is
healthy. Otherwise all are asked, and the one with the highest level is read, the present one if none is better. Core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

HEALTHY_LEVEL = 200  # of 255 (OPC 10000-4, table 104)


class ReconnectStep(Enum):
    """How a life of a source begins."""

    REACTIVATE = "reactivate"
    TRANSFER = "transfer"
    REBUILD = "rebuild"


class ReconnectOutcome(Enum):
    """What became of a step."""

    PROVEN = "proven"  # values or a moved clock have come
    REFUSED = "refused"  # by the server
    SILENT = "silent"  # the server accepted it, and sent nothing
    RESTARTED = "restarted"  # the server is not the one of before


_LOWER = {
    ReconnectStep.REACTIVATE: ReconnectStep.TRANSFER,
    ReconnectStep.TRANSFER: ReconnectStep.REBUILD,
    ReconnectStep.REBUILD: ReconnectStep.REBUILD,
}
NEXT: dict[tuple[ReconnectStep, ReconnectOutcome], ReconnectStep] = {
    **{(step, ReconnectOutcome.PROVEN): ReconnectStep.REACTIVATE for step in ReconnectStep},
    **{
        (step, outcome): lower
        for step, lower in _LOWER.items()
        for outcome in (ReconnectOutcome.REFUSED, ReconnectOutcome.SILENT)
    },
    **{(step, ReconnectOutcome.RESTARTED): ReconnectStep.REBUILD for step in ReconnectStep},
}


def next_step(step: ReconnectStep, outcome: ReconnectOutcome) -> ReconnectStep:
    """The step that follows: at once after a refusal, otherwise when this life has ended."""
    return NEXT[step, outcome]


class RedundantServers:
    """The servers of one source, by their URLs. `url` is the one that is read."""

    def __init__(self, urls: Sequence[str]) -> None:
        assert urls, "a source has a server"
        self._urls = tuple(dict.fromkeys(urls))
        self.url = self._urls[0]

    @property
    def others(self) -> Sequence[str]:
        """The servers that are not read now, those after it first."""
        place = self._urls.index(self.url)
        return self._urls[place + 1 :] + self._urls[:place]

    def needs_another(self, level: int | None) -> bool:
        """Whether the others are to be asked, if the present server has this level; None: it has none."""
        return bool(self.others) and (level is None or level < HEALTHY_LEVEL)

    def choose(self, levels: Mapping[str, int | None]) -> bool:
        """Read the server with the highest of these levels from now on. True if it is another one."""
        before = self.url
        rated = {url: level for url in (before, *self.others) if (level := levels.get(url)) is not None}
        self.url = max(rated, key=lambda url: rated[url], default=before)
        return self.url != before
