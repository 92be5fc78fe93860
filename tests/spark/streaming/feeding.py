"""Facts of which it is known what must be landed: fact n has the value n, every thousandth is a declared gap
instead."""

from agent.fact_store import FactStore
from agent.message import Envelope, Fact, Message, Sample
from tests.spark.making import NOON_NS, SECOND_NS, TELEMETRY

GAP_EVERY = 1000


def gap(number: int) -> Message:
    """A loss that a source has declared."""
    envelope = Envelope(f"gap-{number}", "enterprise", "*", NOON_NS // 1_000_000 + number)
    return Message(envelope, Fact("source:enterprise/press", "samples_lost", b'{"count":%d}' % number))


def append(store: FactStore, first: int, last: int) -> None:
    """Facts `first` to `last`, both included."""
    pending: list[Sample] = []
    for number in range(first, last + 1):
        if number % GAP_EVERY:
            pending.append(Sample(1, NOON_NS + number * SECOND_NS, float(number)))
            continue
        if pending:
            store.appends.append_samples(TELEMETRY, pending).result()
            pending = []
        store.appends.append_messages(TELEMETRY, [gap(number)]).result()
    if pending:
        store.appends.append_samples(TELEMETRY, pending).result()
