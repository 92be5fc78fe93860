"""What is said about the carrier without touching it: where a broker is, and what it delivered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl  # only its name: what leans on this module may be a core


@dataclass(frozen=True, slots=True)
class Access:
    """Where a broker is and who we are there.  The TLS context is made anew for each connection, from files that may have
    been replaced since."""

    name: str
    zone: str
    host: str
    port: int
    make_context: Callable[[], ssl.SSLContext]

    def __str__(self) -> str:
        return f"broker {self.name} ({self.host}:{self.port})"


class Incoming(NamedTuple):
    """A message the broker delivered."""

    topic: str
    payload: bytes
    response_topic: str | None
    correlation: bytes | None
    expiry_s: int | None
    is_retained: bool
