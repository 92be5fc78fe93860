"""paho's client with other methods to open, read and write the TLS socket.

All replaced methods are private methods of paho 2. They are in one file, so that they are quickly compared with a new
release; a test fails if one disappears.

    _ssl_wrap_socket    paho leaks the socket when the handshake fails; also sets TCP_NODELAY
    _sock_recv          paho reads one byte, one byte, then a whole packet, and allocates each time; ours reads and
                        buffers whole TLS records, a fifth less time for a large page; keeps the TLS alert
    _sock_send          reads a pending alert when the broker has closed
    _do_on_publish      reports acknowledgements without the objects that paho makes for its own callback
    _packet_queue       uses a memoryview, because paho copies the rest of a packet after each partial write, a fifth of
                        the time to send a page
    _handle_publish     parses PUBLISH with `publish_packet` and puts messages into `arrived`: paho holds a lock during
                        its callbacks, and publishing in a callback would wait for that lock forever
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
    """A paho client with its own TLS socket handling."""

    _context: ssl.SSLContext
    _server_name: str
    _handshake_s_max: float
    arrived: list[Incoming]
    alert: str
    on_acknowledged: Callable[[int, ReasonCode], None]
    _packet_bytes_max: int
    _ahead: bytes  # read from TLS, not yet consumed by paho

    def use_tls(self, context: ssl.SSLContext, server_name: str, handshake_s_max: float, packet_bytes_max: int) -> None:
        """Use this context, which must verify that the broker is `server_name`. `handshake_s_max` in seconds. A packet
        that announces more than `packet_bytes_max` bytes raises BadPacket before it is read."""
        assert context.check_hostname
        self._packet_bytes_max = packet_bytes_max
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
        """Whether data is buffered for which the socket will not become readable."""
        opened = self.socket()
        return bool(self._ahead) or (isinstance(opened, ssl.SSLSocket) and opened.pending() > 0)

    def control_packets(self) -> int:
        """Packets that wait to be written: those that paho made by itself, and at most one message of ours."""
        return len(self._out_packet)

    def limit_keepalive(self, keepalive_s_max: int) -> None:
        """Detect a dead broker at least this soon, whatever keep-alive the broker asked for."""
        self._keepalive = min(self._keepalive or keepalive_s_max, keepalive_s_max)

    def _sock_recv(self, bufsize: int) -> bytes:
        # paho asks for the rest of the packet, whose length the broker alone decides.
        if bufsize > self._packet_bytes_max:
            raise BadPacket(f"a packet of {bufsize} bytes, at most {self._packet_bytes_max}")
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
            # A broker that refuses our certificate closes before our CONNECT arrives; its alert can still be read.
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
            incoming, qos = parse_publish(self._in_packet["command"], self._in_packet["packet"])
        except BadPacket:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if qos:  # the node subscribes at QoS 0; each acknowledgement would wait until the broker reads it
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self.arrived.append(incoming)
        return MQTTErrorCode.MQTT_ERR_SUCCESS


def rearm_quickack(opened: socket.socket) -> None:
    """Acknowledge the next packets at once, for brokers that use Nagle's algorithm. The kernel resets this option after
    a while."""
    if _QUICKACK is not None:
        opened.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
