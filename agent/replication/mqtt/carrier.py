"""Values of the MQTT carrier: a broker with the identity to use there, and a message that it delivered. No IO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl  # tidy: the type only; cores import this module

from agent.settings.host import host_and_port
from agent.signing.records import SignerInForce


@dataclass(frozen=True, slots=True)
class Access:
    """A broker's address and this node's name. `make_context` makes a TLS context for each connection, because the
    certificate files may have been replaced since the last one."""

    name: str
    node: str
    host: str
    port: int
    make_context: Callable[[], ssl.SSLContext]
    signer: SignerInForce = lambda: None
    """Signs the requests that change something at a peer."""

    def __str__(self) -> str:
        return f"broker {self.name} ({host_and_port(self.host, self.port)})"


class Incoming(NamedTuple):
    """A message the broker delivered."""

    topic: str
    payload: bytes
    response_topic: str | None
    correlation: bytes | None
    expiry_s: int | None
    is_retained: bool
