"""What is behind one host and port, or one serial port: a connection, whose turn it is, and what was learned.

All sources with the same endpoint share it: many devices accept one connection, and the requests of all of them queue
on a gateway's serial side. What was learned outlives connections.
"""

from __future__ import annotations

import asyncio
import time

from agent.ingest.modbus.line.answers import NUMBERS, AnswerMatcher
from agent.ingest.modbus.line.connection import ModbusConnection
from agent.settings.sources import ModbusSourceSettings

IDLE_ENDS_TOLD = 2  # connections that ended between two requests, until it is said
HOLDS_BELIEVED = 3  # in a row: a poll and a part of the next one
PROMPT_S = 0.5  # an end so soon after an answer has its reason in the answer
ONE_ANSWER_ENDS = 2  # connections in a row that ended after one answer, until each request gets its own


class Endpoint:
    """One device or gateway."""

    def __init__(self, settings: ModbusSourceSettings) -> None:
        is_rtu = settings.transport in ("rtu", "rtu_over_tcp")
        self.answers = AnswerMatcher(is_rtu=is_rtu, first_number=time.monotonic_ns() % NUMBERS)
        self.connection: ModbusConnection | None = None
        self.turn = asyncio.Lock()
        self.quiet_until_s = 0.0
        self.users = 0  # sources that are connected
        self.hold_ms: dict[int, int] = {}  # by unit: how long its silence occupies the line, beyond the time-out
        self._holds_seen: dict[int, int] = {}  # by unit, in a row
        self._idle_ends = self._one_answer_ends = 0
        self.forgets_idle = False  # a request over an idle connection was lost, and answered over a new one

    @property
    def closes_idle(self) -> bool:
        """Whether it ends connections between two requests."""
        return self._idle_ends >= IDLE_ENDS_TOLD

    @property
    def closes_after_answer(self) -> bool:
        """Whether it ends a connection after one answer."""
        return self._one_answer_ends >= ONE_ANSWER_ENDS

    @property
    def has_answered(self) -> bool:
        """Whether the connection has brought an answer: the device wanted it."""
        return self.connection is not None and self.connection.answers_total > 0

    def close(self) -> None:
        """End the connection, if there is one."""
        if self.connection is not None:
            self.connection.abort()
            self.connection = None

    def note_hold(self, unit_id: int, hold_ms: int) -> None:
        """The line was occupied for so long after a silence of a unit; 0: it was not. For a unit that has answered, it
        is believed the third time: the unit that was asked instead may have been late itself."""
        if not hold_ms:
            self.hold_ms.pop(unit_id, None)
            self._holds_seen.pop(unit_id, None)
            return
        seen = self._holds_seen[unit_id] = self._holds_seen.get(unit_id, 0) + 1
        if seen >= HOLDS_BELIEVED or not self.answers.has_answered(unit_id):
            self.hold_ms[unit_id] = hold_ms

    def note_end(self, *, is_idle: bool) -> None:
        """The device ended the connection: between two requests, or during one."""
        ended = self.connection
        if ended is None or not ended.answers_total:
            return
        is_after_one = ended.answers_total == 1 and ended.ended_s - ended.answered_s < PROMPT_S
        self._one_answer_ends = self._one_answer_ends + 1 if is_after_one else 0
        self._idle_ends += is_idle and not is_after_one


class Endpoints:
    """The endpoints of a node."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, int], str], Endpoint] = {}

    def of(self, settings: ModbusSourceSettings) -> Endpoint:
        """The endpoint of a source; another one if an edit of its section changes the transport."""
        key = settings.endpoint, settings.transport
        if key not in self._known:
            self._known[key] = Endpoint(settings)
        return self._known[key]
