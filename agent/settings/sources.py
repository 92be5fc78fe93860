"""The settings of sources, with the default beside the field.

The configuration file embeds these records as they are: `[[opcua]]` and `[[modbus]]`. They hold values only; `problems`
names the rules that a type cannot express. Files they name are opened by the source, not here.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from agent.message import STREAM
from agent.settings.host import host_and_port, host_problem, url_problem
from agent.settings.opcua_address import STANDARD_URI, NodeAddress, parse_node_address

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
NO_VALUE = re.compile(
    r"sunspec|nan|0x(?:[0-9a-f]{4}|[0-9a-f]{8}|[0-9a-f]{16})|(?:u?int|float|bcd)[0-9]+:(?:nan|0x[0-9a-f]+|-?[0-9.]+)"
)
FINGERPRINT = re.compile(r"[0-9a-f]{64}")

SERVER_OBJECT = NodeAddress(STANDARD_URI, 2253)
ADDRESS_BASES = (0, 1, 40_001)
REGISTERS_PER_READ_MAX = 125  # Modbus Application Protocol 6.3: the byte count of the answer is one byte
UNIT_ID_MAX = 255  # 1..247 on a serial line; 0 and 248..255 are used by devices that are only reached over TCP

POLL_INTERVAL_RANGE_MS = (10, 3_600_000)

Transport = Literal["tcp", "tls", "rtu", "rtu_over_tcp"]
Parity = Literal["none", "even", "odd"]
ByteOrder = Literal["ABCD", "CDAB", "BADC", "DCBA"]
SecurityPolicy = Literal["None", "Basic256Sha256", "Aes128Sha256RsaOaep", "Aes256Sha256RsaPss"]
SecurityMode = Literal["None", "Sign", "SignAndEncrypt"]
APPLICATION_URI = "urn:bsfg:agent"  # our identity at OPC UA servers; our certificate contains it


@dataclass(frozen=True, slots=True)
class OpcuaSourceSettings:
    """[[opcua]]: one OPC UA server and how its tags are subscribed to.

    The server's certificate is pinned, by file or by the SHA-256 of its DER form, or it is judged by the trust folder.
    A connection without encryption needs `insecure`. The user is a name with a password, which is always sent
    encrypted, a certificate with its key, or anonymous.
    """

    name: str
    url: str
    tags_file: Path
    urls: tuple[
        str, ...
    ] = ()  # the other servers of the same plant (redundancy); the one with the best ServiceLevel is read
    security_policy: SecurityPolicy = "Basic256Sha256"
    security_mode: SecurityMode = "SignAndEncrypt"
    insecure: bool = False
    certificate_file: Path | None = None
    private_key_file: Path | None = None
    server_certificate_file: Path | None = None
    server_certificate_sha256: str = ""
    trust_folder: Path | None = None  # trusted/, issuers/, crl/, rejected/
    crl_required: bool = True  # a certificate by an issuer in issuers/ needs that issuer's revocation list in crl/
    application_uri: str = APPLICATION_URI
    user_name: str = ""
    password_file: Path | None = None
    user_certificate_file: Path | None = None
    user_private_key_file: Path | None = None
    mode: Literal["subscribe", "poll"] = "subscribe"
    poll_interval_ms: int = 1_000  # in mode "poll": how often every value is read
    publishing_interval_ms: int = 500
    sampling_interval_ms: int = 250
    queue_size: int = 0  # per item, at the server; 0: what a publishing interval and a stall of 10 s need
    items_per_subscription_max: int = (
        5_000  # lost together when a server ends a subscription; the server's limit is obeyed
    )
    publish_requests: int = 4  # outstanding at once: on a 50 ms link 4 x 1,000 values each 50 ms, 80,000 values/s
    request_timeout_ms: int = 10_000  # 4 s is short for a large browse on a small PLC
    liveness_timeout_ms: int = 15_000  # the server's clock must be seen to move within this time
    items_per_call_max: int = 1_000  # S7-1200 slows fifty-fold above 200; the server's own limit is obeyed when lower
    parked_retry_ms: int = 30_000  # first retry of a node the server refused; doubles up to ten times this
    buffer_values_max: int = 50_000  # between the wire and the store; full means the next Publish waits
    history_values_per_s_max: int = 10_000  # read from the server's history after a gap; 0 leaves gaps unfilled
    reconnect_delay_ms: int = 1_000
    reconnect_delay_max_ms: int = 60_000
    events: tuple[str, ...] = ()  # nodes whose events are received; "Server" is all that the server has
    events_severity_min: int = 0  # 1 to 1000, as servers give it; 0: all
    events_stream: str = "events"

    @property
    def where(self) -> str:
        """Where the server is."""
        return self.url

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from _name_problems(self.name)
        yield from self._event_problems()
        for name, url in (("url", self.url), *(("urls", other) for other in self.urls)):
            if why := url_problem(url, "opc.tcp://host:4840/path"):
                yield name, why
            elif urlsplit(url).username or urlsplit(url).password:
                yield name, "holds a user name or password; set user_name and password_file instead"
        if self.urls and self.mode == "poll":
            yield "urls", 'are read by subscription; set mode = "subscribe" or remove them'
        yield from self._security_problems()
        yield from _range_problems(
            self,
            poll_interval_ms=(10, 3_600_000),
            publishing_interval_ms=(50, 60_000),
            sampling_interval_ms=(0, 60_000),
            queue_size=(0, 10_000),
            items_per_subscription_max=(1, 100_000),
            publish_requests=(1, 50),
            request_timeout_ms=(500, 120_000),
            items_per_call_max=(1, 10_000),
            parked_retry_ms=(100, 3_600_000),
            buffer_values_max=(1_000, 1_000_000),
            history_values_per_s_max=(0, 1_000_000),
            reconnect_delay_ms=(10, 60_000),
            reconnect_delay_max_ms=(self.reconnect_delay_ms, 3_600_000),
            events_severity_min=(0, 1_000),
        )
        slowest_ms = max(self.publishing_interval_ms, 1_000)  # the server's clock is sampled once a second
        if self.liveness_timeout_ms < 3 * slowest_ms:
            yield (
                "liveness_timeout_ms",
                f"must be at least {3 * slowest_ms}: three times the slower of publishing and 1 s",
            )

    @property
    def event_notifiers(self) -> tuple[NodeAddress, ...]:
        """The nodes in `events`."""
        return tuple(SERVER_OBJECT if text == "Server" else parse_node_address(text) for text in self.events)

    def _event_problems(self) -> Iterator[tuple[str, str]]:
        for text in self.events:
            try:
                if text != "Server":
                    parse_node_address(text)
            except ValueError as error:
                yield "events", f'{text!r} {error}, or "Server" for all events of the server'
        if len(set(self.events)) < len(self.events):
            yield "events", "names a node twice"
        if self.events and self.mode == "poll":
            yield "events", 'come by a subscription, and mode = "poll" has none; set mode = "subscribe" or remove them'
        if not STREAM.fullmatch(self.events_stream):
            yield "events_stream", "a stream name is 1 to 64 of a-z, 0-9, . _ and -"

    def _security_problems(self) -> Iterator[tuple[str, str]]:
        if (self.security_policy == "None") != (self.security_mode == "None"):
            yield "security_mode", 'policy "None" and mode "None" go together'
        if self.security_policy == "None":
            if not self.insecure:
                yield "security_policy", '"None" neither signs nor encrypts; if that is meant, set insecure = true'
        else:
            if self.insecure:
                yield "insecure", 'is only for security_policy = "None"; remove it'
            for name in ("certificate_file", "private_key_file"):
                if getattr(self, name) is None:
                    yield (
                        name,
                        "is needed for a secured connection; if the file does not exist it is made once and kept",
                    )
        if self.server_certificate_file is not None and self.server_certificate_sha256:
            yield "server_certificate_sha256", "give the pinned certificate as a file or as a fingerprint, not both"
        if self.server_certificate_sha256 and not FINGERPRINT.fullmatch(self.server_certificate_sha256):
            yield "server_certificate_sha256", "must be 64 hexadecimal digits in lower case"
        if bool(self.user_name) != (self.password_file is not None):
            yield "user_name", "user_name and password_file go together"
        if (self.user_certificate_file is None) != (self.user_private_key_file is None):
            yield "user_certificate_file", "user_certificate_file and user_private_key_file go together"
        if self.user_certificate_file is not None:
            if self.user_name:
                yield "user_certificate_file", "the user is a name or a certificate, not both"
            if self.security_policy == "None":
                yield "user_certificate_file", "a user certificate is only used over a secured connection"


@dataclass(frozen=True, slots=True)
class ModbusSourceSettings:
    """[[modbus]]: one Modbus device or gateway on one line, and the units behind it.

    `address_base` has no default: whether a vendor's sheet counts from 0, from 1 or from 40001 is the commonest wrong
    guess in the field, and a value one register off can look right.
    """

    name: str
    tags_file: Path
    address_base: int
    device: str = ""  # a device profile: the defaults of what is not set here
    transport: Transport = "tcp"
    host: str = ""
    port: int = 502  # 802 is usual for tls
    ca_file: Path | None = None  # who signed the device's certificate; for tls
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""  # the name in the device's certificate; empty: host
    serial_port: str = ""
    baud_rate: int = 19_200
    parity: Parity = "even"
    stop_bits: int = 1  # 2 is usual for parity none: a character has eleven bits
    unit_id: int = 1
    poll_interval_ms: int = 1_000
    timeout_ms: int = 1_000
    connect_pause_ms: int = 0  # after connecting, before the first request
    request_pause_ms: int = 0  # between an answer and the next request
    registers_per_read_max: int = REGISTERS_PER_READ_MAX
    hole_max: int = 16  # unused registers inside one read: 32 bytes cost less than a second request
    byte_order: ByteOrder = "ABCD"
    no_value: tuple[str, ...] = ()  # numbers with which the device says that it has none, for the types that they fit
    close_after_poll: bool = False  # and open a connection for each poll; devices that forget idle ones are learned
    connections_max: int = 2  # the second is opened only while a unit is silent, to ask it without delaying the others
    unit_retry_ms: int = 2_000  # first question to a silent unit; doubles up to unit_retry_max_ms
    unit_retry_max_ms: int = 60_000
    reconnect_delay_ms: int = 1_000
    reconnect_delay_max_ms: int = 60_000

    @property
    def where(self) -> str:
        """The line in words: `serial port /dev/ttyS0`, or host and port."""
        return f"serial port {self.serial_port}" if self.transport == "rtu" else host_and_port(self.host, self.port)

    @property
    def endpoint(self) -> tuple[str, int]:
        """What sources share that have one line: the serial port, or host and port."""
        return (self.serial_port, 0) if self.transport == "rtu" else (self.host.lower(), self.port)

    @property
    def has_second_connection(self) -> bool:
        """Whether a second connection may be opened: never on a serial line."""
        return self.connections_max > 1 and self.transport != "rtu"

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from _name_problems(self.name)
        yield from self._line_problems()
        if self.address_base not in ADDRESS_BASES:
            yield (
                "address_base",
                "must be 0 (as on the wire), 1 (first register is 1) or 40001 (table in the first digit)",
            )
        for text in self.no_value:
            if not NO_VALUE.fullmatch(text.lower()):
                yield (
                    "no_value",
                    f'{text!r} is no number; write "sunspec", "nan", "0xFFFF" with 4, 8 or 16 digits, or "int16:0x8000"',
                )
        yield from _range_problems(
            self,
            port=(1, 65_535),
            baud_rate=(300, 4_000_000),
            stop_bits=(1, 2),
            unit_id=(0, UNIT_ID_MAX),
            poll_interval_ms=POLL_INTERVAL_RANGE_MS,
            timeout_ms=(10, 60_000),
            connect_pause_ms=(0, 60_000),
            request_pause_ms=(0, 10_000),
            registers_per_read_max=(1, REGISTERS_PER_READ_MAX),
            hole_max=(0, REGISTERS_PER_READ_MAX),
            connections_max=(1, 2),
            unit_retry_ms=(10, 3_600_000),
            unit_retry_max_ms=(self.unit_retry_ms, 3_600_000),
            reconnect_delay_ms=(10, 60_000),
            reconnect_delay_max_ms=(self.reconnect_delay_ms, 3_600_000),
        )

    def _line_problems(self) -> Iterator[tuple[str, str]]:
        """What a transport needs, and what belongs to another."""
        is_serial, is_tls = self.transport == "rtu", self.transport == "tls"
        if is_serial:
            if not self.serial_port:
                yield "serial_port", 'is needed for transport = "rtu", such as /dev/ttyS1'
            if self.host:
                yield "host", 'is not used on a serial line; remove it, or set transport = "rtu_over_tcp"'
        else:
            if why := host_problem(self.host):
                yield "host", why
            if self.serial_port:
                yield "serial_port", f'is not used by transport = "{self.transport}"; set transport = "rtu"'
        if is_tls and self.ca_file is None:
            yield "ca_file", "is needed for tls: the certificate of the authority that signed the device's"
        if (self.cert_file is None) != (self.key_file is None):
            yield "cert_file", "cert_file and key_file go together"
        for name in ("ca_file", "cert_file", "server_name"):
            if getattr(self, name) and not is_tls:
                yield name, f'is not used by transport = "{self.transport}"; set transport = "tls"'


PROFILE_TEXTS = frozenset({"description", "url", "notes"})  # maker and model, as on the type plate; of the register map
PROFILE_SETTINGS = frozenset({
    "address_base", "transport", "port", "baud_rate", "parity", "stop_bits", "unit_id", "poll_interval_ms", "timeout_ms",
    "connect_pause_ms", "request_pause_ms", "registers_per_read_max", "hole_max", "byte_order", "no_value",
    "close_after_poll", "connections_max", "unit_retry_ms", "unit_retry_max_ms",
})  # fmt: skip
"""What devices.d/NAME.toml may set: what a kind of Modbus device needs, found once and shared. Each is the default of
the setting of that name in [[modbus]] for sources with `device = "NAME"`."""

SourceSettings = OpcuaSourceSettings | ModbusSourceSettings


def toml(value: object) -> str:
    """A setting as node.toml writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def section(settings: SourceSettings, without: Container[str] = ()) -> str:
    """The section of node.toml for these settings, without some: what differs from the defaults."""
    lines = ["[[modbus]]" if isinstance(settings, ModbusSourceSettings) else "[[opcua]]"]
    for known in fields(settings):
        value = getattr(settings, known.name)
        if value is not None and value != known.default and known.name not in without:
            lines.append(f"{known.name} = {toml(value)}")
    return "\n".join(lines) + "\n"


def _name_problems(name: str) -> Iterator[tuple[str, str]]:
    if not NAME.fullmatch(name):
        yield "name", "a source's name is 1 to 64 of a-z, 0-9, . _ and -, beginning with a letter or digit"


def _range_problems(settings: SourceSettings, **ranges: tuple[int, int]) -> Iterator[tuple[str, str]]:
    for name, (lowest, highest) in ranges.items():
        if not lowest <= getattr(settings, name) <= highest:
            yield name, f"must be {lowest} to {highest}"
