"""paho's client where it leaves something to wish for: the TLS socket's birth, and how it is read.

All are overridden private methods of paho 2, small and alone in this file so that a new release is checked against them in
a minute; a test fails where one is gone.  `_ssl_wrap_socket`: paho leaves the socket open when the handshake fails, once per attempt; ours closes it, and
turns off what delays small packets.  `_sock_recv`: paho asks for one byte, one byte, and the whole rest of a packet, but TLS gives 16 KiB at a time
and each call allocates for what was asked; ours asks for what can come, a fifth less time over a large page, and keeps what was not
wanted yet.  paho also forgets the TLS alert in which a broker says why it refuses a certificate; ours keeps it in `alert`, and `_sock_send`
looks for one.  `_do_on_publish`: with `on_publish` paho also tells, in objects made for it, that a QoS 0 message was written, which nobody asked.
`_packet_queue`: paho copies a packet before it writes it, and again what is left of it after each write; of a memoryview the rest
is no copy, which over a page was a fifth of what sending it took.  `_handle_publish`: see `publish_packet`; what arrives is
set aside in `arrived`, as paho holds a lock during its callbacks that publishing would wait for, for ever.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from paho.mqtt.client import Client, MQTTMessageInfo
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from agent.replication.mqtt.carrier import Incoming
from agent.replication.mqtt.publish_packet import BadPacket, parse_publish

TLS_RECORD_BYTES_MAX = 16 * 1024
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)


class TlsClient(Client):
    """A paho client whose sockets are ours."""

    _context: ssl.SSLContext
    _server_name: str
    _handshake_s_max: float
    arrived: list[Incoming]
    alert: str
    on_acknowledged: Callable[[int, ReasonCode], None]
    _ahead: bytes  # read from TLS, not yet asked for

    def use_tls(self, context: ssl.SSLContext, server_name: str, handshake_s_max: float) -> None:
        """Connect with this context, which must check that the broker is `server_name`."""
        assert context.check_hostname
        self._context, self._server_name, self._handshake_s_max = context, server_name, handshake_s_max
        self.arrived, self.alert, self._ahead = [], "", b""
        self.tls_set_context(context)

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        tcp_sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wrapped = self._context.wrap_socket(tcp_sock, server_hostname=self._server_name, do_handshake_on_connect=False)
        try:
            wrapped.settimeout(self._handshake_s_max)
            wrapped.do_handshake()
            rearm_quickack(wrapped)
        except OSError:
            wrapped.close()
            raise
        return wrapped

    def has_more(self) -> bool:
        """Whether there is something to read that the socket will not wake anybody for."""
        opened = self.socket()
        return bool(self._ahead) or (isinstance(opened, ssl.SSLSocket) and opened.pending() > 0)

    def _sock_recv(self, bufsize: int) -> bytes:
        if not self._ahead:
            self._ahead = self._receive()
        taken, self._ahead = self._ahead[:bufsize], self._ahead[bufsize:]
        return taken

    def _receive(self) -> bytes:
        try:
            return super()._sock_recv(TLS_RECORD_BYTES_MAX)
        except ssl.SSLError as error:
            self.alert = error.reason or ""
            raise

    def _sock_send(self, buf: bytes | bytearray) -> int:
        try:
            return super()._sock_send(buf)
        except BlockingIOError:
            raise
        except OSError:
            # A broker that refuses our certificate has closed before our CONNECT comes; its reason lies there to be read.
            with contextlib.suppress(OSError):
                self._receive()
            raise

    def _packet_queue(
        self, command: int, packet: Any, mid: int, qos: int, info: MQTTMessageInfo | None = None
    ) -> MQTTErrorCode:
        return super()._packet_queue(command, cast("bytes", memoryview(packet)), mid, qos, info)

    def _do_on_publish(self, mid: int, reason_code: ReasonCode, properties: Properties) -> MQTTErrorCode:
        self.on_acknowledged(mid, reason_code)
        return super()._do_on_publish(mid, reason_code, properties)

    def _handle_publish(self) -> MQTTErrorCode:
        try:
            incoming, qos, identifier = parse_publish(self._in_packet["command"], self._in_packet["packet"])
        except BadPacket:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if qos > 1:  # we subscribe at QoS 0
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self.arrived.append(incoming)
        return self._send_puback(identifier) if qos else MQTTErrorCode.MQTT_ERR_SUCCESS


def rearm_quickack(opened: socket.socket) -> None:
    """Acknowledge at once what comes next: the kernel forgets the wish after a while.  Against a broker that left Nagle on."""
    if _QUICKACK is not None:
        opened.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
