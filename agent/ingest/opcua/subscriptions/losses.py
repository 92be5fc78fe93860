"""What may be missing of a connected source: tags without an item, and losses that are not declared yet.

A loss begins where everything that the server had was delivered (`completeness`), and ends with the next reading of the
server's clock: a published clock is late, and values lost just before would lie after the gap. Losses of one reason
become one gap.

A tag without an item that publishes is *absent*: its item was refused, dead or changed, or its node is gone. That ends
with its first value, and is a loss from its beginning on. Absences continue across sessions and processes. Core.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, KeysView, Mapping
from collections.abc import Set as AbstractSet

from agent.ingest.completeness import Moment, earliest, spans
from agent.ingest.gap import CLOCK_SET_BACK, ITEM_GONE, TagGap


class Losses:
    """The open losses of one source, by reason; those of absent tags also by their beginning, which may be days ago."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, Moment | None], tuple[Moment, set[int]]] = {}  # since when, and tags

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, reason: str, since: Moment, tags: Iterable[int], now: Moment) -> None:
        """Values of these tags may be missing since then."""
        key = reason, since if reason == ITEM_GONE else None
        first, known = self._open.get(key, (since, set[int]()))
        self._open[key] = earliest((first, since), now) or since, known.union(tags)

    def take_gaps(self, now: Moment, spans: Callable[[Moment, Moment], list[tuple[int, int]]] = spans) -> list[TagGap]:
        """End all losses: their gaps up to `now`, in these spans."""
        found: list[TagGap] = []
        for (reason, _), (since, tags) in self._open.items():
            span, *before = spans(since, now)
            found.append(TagGap(reason, *span, tuple(sorted(tags))))
            found += [TagGap(CLOCK_SET_BACK, *earlier, tuple(sorted(tags))) for earlier in before]
        self._open.clear()
        return found


class Absences:
    """The tags of one source without an item that publishes, and since when; bounded by the tag map through `keep`."""

    def __init__(self) -> None:
        self._since: dict[int, Moment] = {}
        self._requested: set[int] = set()  # whose new item was requested: what arrives from now on is of that

    @property
    def tags(self) -> KeysView[int]:
        """The absent tags."""
        return self._since.keys()

    def since(self, tag: int) -> Moment | None:
        """The beginning of an absence; None if the tag is not absent."""
        return self._since.get(tag)

    def begin_absence(self, tags: Collection[int], since: Moment) -> list[int]:
        """These tags are absent since then. A known absence keeps its beginning. Returns the others."""
        self._requested.difference_update(tags)
        news = [tag for tag in tags if tag not in self._since]
        self._since.update(dict.fromkeys(news, since))
        return news

    def request(self, tags: Iterable[int]) -> None:
        """Items of these tags are about to be created; the old ones are deleted."""
        self._requested.update(self._since.keys() & set(tags))

    def among(self, arrived: AbstractSet[int]) -> AbstractSet[int]:
        """The absent tags among these whose new item has published what arrives now."""
        return self._requested & arrived if self._requested else frozenset()

    def keep(self, tags: Container[int], renumbered: Mapping[int, int]) -> None:
        """Take over a new tag map: only these tags are wanted, and some have a new number."""
        known = {renumbered.get(tag, tag): since for tag, since in self._since.items()}
        self._since = {tag: since for tag, since in known.items() if tag in tags}
        self._requested &= self._since.keys()

    def end_absence(self, tags: Iterable[int], losses: Losses, now: Moment) -> None:
        """The items of these absent tags have published a value."""
        for tag in tags:
            if tag in self._requested:  # otherwise it is absent again
                self._requested.discard(tag)
                losses.add(ITEM_GONE, self._since.pop(tag), [tag], now)
