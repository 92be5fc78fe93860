"""Foreign OPC UA servers as processes that a test controls: each command of servers/*/server.* is a method.

A server listens on loopback, on a port found free at its first start and kept for later ones. It writes what it set
into a record of its own, which outlives a kill: `record()` is what the world was, whatever our store says.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.foreign.process import INSTALLED, SERVERS, ServerProcess, Stack
from tests.waiting import wait_until_async

NODE_OPCUA = Stack(
    "node_opcua",
    ("node", str(SERVERS / "node_opcua" / "server.js")),
    "NODE_PATH",
    INSTALLED / "node_opcua" / "node_modules",
)
OPEN62541 = Stack(
    "open62541",
    (sys.executable, str(SERVERS / "open62541" / "server.py")),
    "PYTHONPATH",
    INSTALLED / "open62541",
)


class Recorded(NamedTuple):
    """A value that the server set, by its own account."""

    name: str
    time_ns: int
    value: Any
    status: int


class ForeignServer(ServerProcess):
    """One server; started, killed and started again on the same port, with the same keys and the same record."""

    def __init__(self, folder: Path, stack: Stack = NODE_OPCUA, **options: Any) -> None:
        super().__init__(folder, stack)
        self._options: dict[str, Any] = {
            "port": 0,
            "pki": str(folder / "pki"),
            "record": str(folder / "record.jsonl"),
            **options,
        }
        self.url = self.namespace = ""
        self.port = 0
        self.certificate = Path()
        self._record: dict[str, list[Recorded]] = {}
        self._record_bytes = 0  # read so far

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self, **options: Any) -> None:
        """Start, or start again after `kill` or `stop`; `options` change what it was made with."""
        self._options |= options
        ready = await asyncio.to_thread(self._begin, [json.dumps(self._options)])
        self.port, self.url, self.namespace = ready["port"], ready["url"], ready["namespace"]
        self.certificate = Path(ready["certificate"])
        self._options["port"] = self.port

    async def stop(self) -> None:
        """End in order: the server says goodbye to its clients."""
        await self.command("stop")
        await asyncio.to_thread(self._end)

    async def recover(self) -> None:
        """Running and well: clock right, Publish answered, listening, its variables as first given."""
        if not self.is_running:
            await self.start()
        self.thaw()
        await self.command("recover")

    # --- commands ----------------------------------------------------------------------------------------------------

    async def command(self, what: str, **fields: Any) -> Any:
        """One command and its answer; raises Refused with the server's reason."""
        return await asyncio.to_thread(self._exchange, json.dumps({"do": what, **fields}), what)

    async def add(self, *variables: dict[str, Any]) -> None:
        """Add variables; the fields are in servers/node_opcua/server.js."""
        await self.command("add", variables=variables)

    async def delete(self, name: str) -> None:
        """Delete a variable's node."""
        await self.command("delete", name=name)

    async def recreate(self, name: str) -> None:
        """Make the node of a deleted variable again, with a new value."""
        await self.command("recreate", name=name)

    async def set(self, name: str, value: Any = None, status: str = "Good", time_ns: int | None = None) -> None:
        """Set value, status and source time (of None: the old value, the server's clock)."""
        fields: dict[str, Any] = {} if value is None else {"value": value}
        if time_ns is not None:
            fields["time_ns"] = str(time_ns)
        await self.command("set", name=name, status=status, **fields)

    async def permit(self, name: str, *, on: bool) -> None:
        """Take from the role that everybody has the permission to read a variable, or give it back."""
        await self.command("permit", name=name, on=on)

    async def run(self, *, on: bool) -> None:
        """Let the variables stand still, or change at their periods again."""
        await self.command("run", on=on)

    async def shift_clock(self, ms: int) -> None:
        """Set the server's clock this much ahead of the machine's: CurrentTime and source times."""
        await self.command("shift_clock", ms=ms)

    async def service_level(self, level: int) -> None:
        """Set how well the server says that it serves its clients, 0 to 255."""
        await self.command("service_level", level=level)

    async def publish(self, mode: str, **fields: Any) -> None:
        """What becomes of Publish requests: flow, hold, refuse (with `status`), lose (the answer)."""
        await self.command("publish", mode=mode, **fields)

    async def kill_sessions(self, *, with_subscriptions: bool = True) -> int:
        """Close all sessions from the server's side; how many there were."""
        return int(await self.command("kill_sessions", with_subscriptions=with_subscriptions))

    async def kill_subscriptions(self) -> int:
        """End all subscriptions and leave their sessions; how many there were."""
        return int(await self.command("kill_subscriptions"))

    async def mute(self, name: str) -> int:
        """Let the items of a variable stand and publish nothing more; how many there were."""
        return int(await self.command("mute", name=name))

    async def cut(self) -> None:
        """Close every connection without a word."""
        await self.command("cut")

    async def listen(self, *, on: bool) -> None:
        """Refuse new connections, or take them again."""
        await self.command("listen", on=on)

    async def trust(self, certificate: Path) -> None:
        """Trust a client's certificate (PEM or DER)."""
        await self.command("trust", file=str(certificate))

    async def raise_event(
        self, message: str, severity: int = 500, type_name: str = "BaseEventType", count: int = 1
    ) -> None:
        """Raise events at the Server object; the texts of several are numbered."""
        await self.command("raise_event", message=message, severity=severity, type=type_name, count=count)

    async def set_alarm(self, *, active: bool) -> dict[str, bool]:
        """Make the alarm on `alarm_input` active or inactive; its state."""
        return dict(await self.command("set_alarm", active=active))

    async def acknowledge(self, comment: str = "") -> dict[str, bool]:
        """Acknowledge the alarm as an operator at the server would; its state."""
        return dict(await self.command("acknowledge", comment=comment))

    async def status(self) -> dict[str, Any]:
        """Sessions, subscriptions with their items, Publish requests."""
        return dict(await self.command("status"))

    # --- what it knows -----------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The variables it was made with."""
        return [variable["name"] for variable in self._options["variables"]]

    def address(self, name: str) -> str:
        """A variable's node id as a tag map has it."""
        return f"nsu={self.namespace};s={name}"

    def tags(self, *names: str) -> str:
        """A tag map of these variables: tag `f/<name>`."""
        return "tag,address\n" + "".join(f"f/{name},{self.address(name)}\n" for name in names)

    def record(self, name: str) -> list[Recorded]:
        """All values that this variable has had, by the server's account, in order."""
        with Path(self._options["record"]).open("rb") as file:
            file.seek(self._record_bytes)
            whole = file.read()
        whole = whole[: whole.rfind(b"\n") + 1]  # the last line of a killed server may be cut
        self._record_bytes += len(whole)
        for entry in map(json.loads, whole.splitlines()):
            found = Recorded(entry["name"], int(entry["time_ns"]), entry["value"], entry["status"])
            self._record.setdefault(found.name, []).append(found)
        return list(self._record.get(name, []))

    async def wait_record(self, name: str, more: int) -> None:
        """Until the record has so many more values of a variable, whoever was there to receive them."""
        until = len(self.record(name)) + more
        await wait_until_async(lambda: len(self.record(name)) > until, "values at the server", 60)


@asynccontextmanager
async def foreign_server(folder: Path, stack: Stack = NODE_OPCUA, **options: Any) -> AsyncIterator[ForeignServer]:
    """A server for the length of a block; its files are in `folder`."""
    server = ForeignServer(folder, stack, **options)
    await server.start()
    try:
        yield server
    finally:
        server.close()
