"""Trouble that open62541 has no function for: its clock shifted, its sessions and subscriptions ended, its answers to
Publish held back, refused or lost, its connections cut.

The library's internal functions are replaced (`hooks`) to see its sessions and subscriptions, and to stand between them
and the network. What they look like is that of version 1.5.4, which set-up installs.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from ctypes import CFUNCTYPE, POINTER, c_bool, c_int, c_int64, c_uint32, c_void_p
from pathlib import Path
from time import CLOCK_REALTIME
from typing import Any

from library import Library

CLOSED, TIMED_OUT = 0, 3  # UA_ShutdownReason: a session that timed out leaves its subscriptions
RESULT_AT = 12  # of the ServiceResult in a response
NEW_FIELDS = 40  # numbers of 32 bits at the beginning of a subscription, which is longer
REFUSED = 0x8078_0000  # BadTooManyPublishRequests
MODES = ("flow", "hold", "refuse", "lose")

_Subscription = CFUNCTYPE(None, c_void_p, c_void_p)


class Trouble:
    """What is wrong with a server. Made before the server is."""

    def __init__(self, library: Library, first_number: int) -> None:
        self._first_number = first_number  # of the notifications of a subscription
        self.shift_ms = 0
        self.mode = "flow"  # of Publish
        self.is_listening = True
        self.sessions: set[int] = set()
        self.subscriptions: dict[int, bool] = {}  # whether it is in a session
        self._publish_response = library.data_type("PublishResponse")
        self._originals: dict[str, Any] = {}
        self._hooks = library.hooks()
        self._hook("clock_gettime", CFUNCTYPE(c_int, c_int, POINTER(c_int64)), self._tell_time)
        self._hook("accept", CFUNCTYPE(c_int, c_int, c_void_p, c_void_p), self._accept)
        created = CFUNCTYPE(c_uint32, c_void_p, c_void_p, c_void_p, POINTER(c_void_p))
        self._hook("UA_Session_create", created, self._create_session)
        self._hook("UA_Session_remove", CFUNCTYPE(None, c_void_p, c_void_p, c_int), self._remove_session)
        self._hook("UA_Subscription_new", CFUNCTYPE(c_void_p), self._new_subscription)
        self._hook("UA_Session_attachSubscription", _Subscription, self._attach)
        detached = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_bool)
        self._hook("UA_Session_detachSubscription", detached, self._detach)
        self._hook("UA_Subscription_delete", _Subscription, self._delete)
        self._hook("UA_Subscription_publish", _Subscription, self._publish)
        service = CFUNCTYPE(c_bool, c_void_p, c_void_p, c_void_p, c_void_p)
        self._hook("Service_Publish", service, self._take_publish)
        sent = CFUNCTYPE(c_uint32, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p)
        self._hook("sendResponse", sent, self._send)

    def _hook(self, name: str, kind: Any, ours: Callable[..., Any]) -> None:
        def make(original: Any) -> Callable[..., Any]:
            self._originals[name] = original
            return ours

        self._hooks.replace(name, kind, make)

    # --- commands ----------------------------------------------------------------------------------------------------

    def kill_sessions(self, server: int, *, with_subscriptions: bool = True) -> int:
        """End all sessions; how many there were."""
        ended = list(self.sessions)
        for session in ended:
            self._remove_session(server, session, CLOSED if with_subscriptions else TIMED_OUT)
        return len(ended)

    def kill_subscriptions(self, server: int) -> int:
        """End the subscriptions of all sessions; how many there were."""
        ended = [subscription for subscription, is_attached in self.subscriptions.items() if is_attached]
        for subscription in ended:
            self._delete(server, subscription)
        return len(ended)

    def publish(self, mode: str) -> None:
        """What becomes of Publish requests."""
        if mode not in MODES:
            raise ValueError(f"publish cannot {mode}")
        self.mode = mode

    def status(self) -> dict[str, Any]:
        """How many sessions, how many subscriptions in sessions and without one."""
        attached = sum(self.subscriptions.values())
        orphans = len(self.subscriptions) - attached
        return {"sessions": len(self.sessions), "subscriptions": [{}] * attached, "orphans": orphans}

    # --- in the place of the library's functions ----------------------------------------------------------------------

    def _tell_time(self, clock: int, time: Any) -> int:
        failed = int(self._originals["clock_gettime"](clock, time))
        if clock == CLOCK_REALTIME:
            time[0], time[1] = divmod(time[0] * 10**9 + time[1] + self.shift_ms * 10**6, 10**9)
        return failed

    def _accept(self, listener: int, address: int, size: int) -> int:
        descriptor = int(self._originals["accept"](listener, address, size))
        if descriptor >= 0 and not self.is_listening:
            with suppress(OSError):  # it has hung up itself
                hang_up(descriptor)
        return descriptor

    def _create_session(self, server: int, channel: int, request: int, session: Any) -> int:
        status = int(self._originals["UA_Session_create"](server, channel, request, session))
        if not status:
            self.sessions.add(session[0])
        return status

    def _remove_session(self, server: int, session: int, reason: int) -> None:
        self.sessions.discard(session)
        self._originals["UA_Session_remove"](server, session, reason)

    def _new_subscription(self) -> int:
        """Of all that stands in it, only the number of its first notification is 1."""
        subscription = int(self._originals["UA_Subscription_new"]())
        fields = (c_uint32 * NEW_FIELDS).from_address(subscription)
        (place,) = [place for place, value in enumerate(fields) if value == 1]
        fields[place] = self._first_number
        return subscription

    def _attach(self, session: int, subscription: int) -> None:
        if session in self.sessions:  # the server has a session of its own
            self.subscriptions[subscription] = True
        self._originals["UA_Session_attachSubscription"](session, subscription)

    def _detach(self, server: int, session: int, subscription: int, releases: bool) -> None:
        if subscription in self.subscriptions:
            self.subscriptions[subscription] = False  # one that is transferred is copied, and this one deleted
        self._originals["UA_Session_detachSubscription"](server, session, subscription, releases)

    def _delete(self, server: int, subscription: int) -> None:
        self._originals["UA_Subscription_delete"](server, subscription)
        self.subscriptions.pop(subscription, None)

    def _publish(self, server: int, subscription: int) -> None:
        """Called at each publishing interval, and by a transfer, which ends the subscription in its old session."""
        if self.mode != "hold":
            self._originals["UA_Subscription_publish"](server, subscription)

    def _take_publish(self, server: int, session: int, request: int, response: int) -> bool:
        if self.mode != "refuse":
            return bool(self._originals["Service_Publish"](server, session, request, response))
        c_uint32.from_address(response + RESULT_AT).value = REFUSED
        return True

    def _send(self, server: int, channel: int, request: int, response: int, kind: int) -> int:
        if self.mode == "lose" and kind == self._publish_response:
            return 0
        return int(self._originals["sendResponse"](server, channel, request, response, kind))


def cut() -> None:
    """Shut every connection down, from below the library."""
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                hang_up(descriptor)


def hang_up(descriptor: int) -> None:
    """Shut a connection down. Its owner closes the descriptor."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.getpeername()  # one that listens has none
        connection.shutdown(socket.SHUT_RDWR)
