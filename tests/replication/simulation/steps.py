"""Runs the product's coroutines without an event loop: each runs up to the next future, and goes on as an event of the
world."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Waiting(Generic[T]):
    """Awaits a future; may be awaited several times."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[Future[T], None, T]:
        if not self._future.done():
            yield self._future
        return self._future.result()


def run(coroutine: Coroutine[Future[Any], None, None], soon: Callable[[Callable[[], None]], None]) -> None:
    """Run a coroutine to its end. `soon` makes an event of a step, or none if the life has ended."""
    try:
        future = coroutine.send(None)
    except StopIteration:
        return
    future.add_done_callback(lambda _: soon(partial(run, coroutine, soon)))
