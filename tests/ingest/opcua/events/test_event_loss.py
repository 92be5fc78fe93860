from agent.ingest.opcua.events.event_fields import QUEUE_OVERFLOW
from agent.ingest.opcua.events.event_loss import QueueWatch
from tests.ingest.opcua.events.events import event


def test_an_overflow_that_the_server_reports() -> None:
    """Whatever else is in the publication, and before the burst is over."""
    watch = QueueWatch({1: 100})
    assert watch.take([event(), event(QUEUE_OVERFLOW)], more=True)
    assert not watch.take([event()], more=False)


def test_a_burst_as_long_as_the_queue_is_taken_for_an_overflow() -> None:
    """For a server that discards without a word. Counted for each item, over all publications of a burst."""
    watch = QueueWatch({1: 3, 2: 3})
    assert not watch.take([event(handle=1), event(handle=2)], more=True)
    assert not watch.take([event(handle=1), event(handle=2)], more=False)
    assert not watch.take([event(handle=1)] * 2, more=True)
    assert watch.take([event(handle=1)], more=False)
    assert not watch.take([event(handle=1)] * 2, more=False)


def test_a_queue_of_unknown_size_is_not_watched() -> None:
    """Servers that tell 0 or 1 for events do not mean it."""
    watch = QueueWatch({1: 0, 2: 1})
    assert not watch.take([event(handle=1)] * 5 + [event(handle=2)] * 5 + [event(handle=3)], more=False)
