"""The attacker: a second implementation of the protocol in JavaScript, as a process that a test controls line by line.

`attacker/` is written from docs/developers/protocol.md, batch-format.md and messages.md alone and shares no code with
the product. It has the certificates that a test gives it, asks and serves as these zones, and floods.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.foreign.process import INSTALLED, ServerProcess, Stack

HERE = Path(__file__).resolve().parent
STACK = Stack(
    "attacker", ("node", str(HERE / "attacker" / "attacker.js")), "NODE_PATH", INSTALLED / "attacker" / "node_modules"
)
MS_1970 = 1_700_000_000_000


class Attacker(ServerProcess):
    """One process with the identities of some zones."""

    def __init__(self, folder: Path, host: str, port: int, zones: Mapping[str, Mapping[str, str | int]]) -> None:
        super().__init__(folder, STACK)
        self._options = {"host": host, "port": port, "zones": zones}

    def start(self) -> None:
        """Start it; connections are opened when they are needed."""
        self._begin([json.dumps(self._options)])

    def command(self, what: str, **fields: Any) -> Any:
        """Run one command of attacker.js. Returns its answer."""
        return self._exchange(json.dumps({"do": what, **fields}), what)

    # ------------------------------------------------------------------------------------------------------ asking

    def ask(
        self, zone: str, serving: str, operation: str, *, limit_ms: int = 10_000, raw: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        """The header of the answer to a request; `{}` if none comes in time. `raw`: the request's text, sent
        unchanged."""
        sent = {"raw": raw} if raw is not None else {"fields": fields}
        found = self.command("ask", zone=zone, serving=serving, operation=operation, limit_ms=limit_ms, **sent)
        return dict(found.get("header", {}))

    # ----------------------------------------------------------------------------------------------------- serving

    def serve(self, zone: str, asking: str, life: str | None = None) -> str:
        """Answer the requests of a zone from a log of our own. Returns the life under which it is served."""
        return str(self.command("serve", zone=zone, asking=asking, life=life))

    def append(self, zone: str, stream: str, messages: Sequence[Mapping[str, Any]], **batch: Any) -> dict[str, Any]:
        """Add a batch of messages to that log. `origin` and `life` are those that the batch claims."""
        return dict(self.command("append", zone=zone, stream=stream, batch={"messages": messages, **batch}))

    def append_sample(self, zone: str, stream: str, sample: Mapping[str, Any], definitions: Sequence[str]) -> None:
        """Add a batch of one sample, with the texts of its origin's definitions."""
        self.command("append", zone=zone, stream=stream, batch={"sample": sample, "definitions": definitions})

    # ---------------------------------------------------------------------------------------------------- flooding

    @contextmanager
    def flooding(self, kind: str, **fields: Any) -> Iterator[str]:
        """Run a flood of floods.js during a block. Returns its name, for `counts`."""
        name = f"{kind}-{id(fields)}"
        self.command("flood", name=name, kind=kind, **fields)
        try:
            yield name
        finally:
            if self.is_running:
                self.command("stop_flood", name=name)

    def counts(self, name: str) -> dict[str, int]:
        """The outcomes of the requests of a flood."""
        return dict(self.command("counts", name=name))


def message(
    number: int | str, content: bytes | str = b'{"ok":true}', zone: str = "evil", **fields: Any
) -> dict[str, Any]:
    """A message for a batch; `content` are the bytes of its object, unchanged."""
    return {
        "message_id": f"{zone}-{number}",
        "from_zone": zone,
        "to_zone": "*",
        "produced_at_unix_ms": MS_1970,
        "subject": "order:line1/77",
        "predicate": "step_completed",
        "object": {"bin": b64(content)},
        **fields,
    }


def b64(content: bytes | str) -> str:
    """Bytes in the encoding of the attacker's commands."""
    return base64.b64encode(content.encode() if isinstance(content, str) else content).decode()
