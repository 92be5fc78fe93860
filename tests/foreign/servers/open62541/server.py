"""An OPC UA server on open62541, controlled by JSON lines as servers/node_opcua/server.js is, as far as that stack lets
a program: no alarms, and no structures of a vendor's own. Trouble is in `trouble`. Of its options these: `port`, `pki`,
`policies`, `limits` (the first five), `variables`, `first_number`, `record`, and `trusted`, a list of files with client
certificates in DER (without it every client is trusted).

python server.py '{"port": 0, "pki": "/tmp/pki", "variables": [{"name": "count", "type": "Int32", "period_ms": 100}]}'
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from history import CONFIGURATION, History
from library import (
    EPOCH_100NS,
    HAS_SOURCE_TIME,
    HAS_STATUS,
    HAS_VALUE,
    DataValue,
    Library,
    LocalizedText,
    NodeId,
    QualifiedName,
    Text,
    VariableAttributes,
)
from trouble import Trouble, cut

HOST = "127.0.0.1"
NAMESPACE = "urn:bsfg:foreign"
APPLICATION_URI = "urn:bsfg:foreign:open62541"
OBJECTS_FOLDER, HAS_COMPONENT, BASE_DATA_VARIABLE_TYPE = 85, 47, 63  # node ids of namespace 0
SERVER_OBJECT, EVENT_TYPES = 2253, {"BaseEventType": 2041, "SystemEventType": 2130}
READ, HISTORY_READ = 1, 4  # access levels
STEP_S = 0.005  # between two looks at the network: open62541 does its work when it is called


class Plant:
    """The variables, their changes and their record."""

    def __init__(self, library: Library, server: int, record: str | None, trouble: Trouble, history: History) -> None:
        self._library, self._server, self._trouble, self._history = library, server, trouble, history
        self.variables: dict[str, dict[str, Any]] = {}
        self.is_running = True
        self._namespace = library.call("UA_Server_addNamespace", server, NAMESPACE.encode())
        self._earlier: dict[str, list[dict[str, Any]]] = {}
        if record and Path(record).exists():
            for line in Path(record).read_text().splitlines(keepends=True):
                if line.endswith("}\n"):
                    entry = json.loads(line)
                    self._earlier.setdefault(entry["name"], []).append(entry)
        self._record = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if record else None

    def add(self, name: str, **options: Any) -> None:
        """Add a variable, or `count` of them."""
        count = options.pop("count", None)
        if count is not None:
            for i in range(count):
                self.add(f"{name}_{i:04}", **options)
            return
        earlier = self._earlier.get(name, [])
        known = {"type": "Double", "period_ms": 0, "sampling_ms": 0, "status": "Good", "due_s": 0.0, **options}
        known |= {"changes": len(earlier), "last_ns": int(earlier[-1]["time_ns"]) if earlier else 0, "is_there": True}
        known.setdefault("value", counted(known))
        self.variables[name] = known
        self._make_node(name)
        if known.get("history"):
            self._history.keep(self._server, self._node_id(name))
            for entry in earlier:
                self._write(name, int(entry["time_ns"]), entry["value"], entry["status"])
        self.set(name)

    def delete(self, name: str) -> None:
        self._get(name)["is_there"] = False
        self._library.call("UA_Server_deleteNode", self._server, self._node_id(name), True)

    def recreate(self, name: str) -> None:
        if self.variables[name]["is_there"]:
            raise ValueError(f"{name} was not deleted")
        self.variables[name]["is_there"] = True
        self._make_node(name)
        if self.variables[name]["period_ms"]:
            self._change(name)
        else:
            self.set(name)

    def set(self, name: str, **what: Any) -> None:
        """Set value, status, source time; the record gets them first."""
        known = self._get(name)
        known["value"], known["status"] = what.get("value", known["value"]), what.get("status", "Good")
        at_ns = int(what["time_ns"]) if "time_ns" in what else self._next_time(known)
        status = self._library.status(known["status"])
        if self._record is not None:
            entry = {"name": name, "time_ns": str(at_ns), "value": known["value"], "status": status}
            os.write(self._record, (json.dumps(entry) + "\n").encode())
        self._write(name, at_ns, known["value"], status)

    def _write(self, name: str, at_ns: int, value: Any, status: int) -> None:
        variant, memory = self._library.variant(self.variables[name]["type"], value)
        made = DataValue(variant, source_time=at_ns // 100 + EPOCH_100NS, status=status)
        made.has = HAS_VALUE | HAS_STATUS | HAS_SOURCE_TIME
        self._library.call("UA_Server_writeDataValue", self._server, self._node_id(name), made)
        del memory  # copied by now

    def tick(self) -> None:
        """Change what is due."""
        now_s = time.monotonic()
        for name, known in self.variables.items():
            if self.is_running and known["is_there"] and known["period_ms"] and now_s >= known["due_s"]:
                known["due_s"] = max(known["due_s"] + known["period_ms"] / 1000, now_s)
                self._change(name)

    def _change(self, name: str) -> None:
        known = self.variables[name]
        known["changes"] += 1
        self.set(name, value=counted(known), status=known["status"])

    def _next_time(self, known: dict[str, Any]) -> int:
        """A source time later than the last, unless the clock was set back."""
        now_ns = time.time_ns() // 100 * 100 + self._trouble.shift_ms * 1_000_000
        is_set_back = now_ns + 1_000_000_000 < known["last_ns"]
        known["last_ns"] = now_ns if now_ns > known["last_ns"] or is_set_back else known["last_ns"] + 100
        return int(known["last_ns"])

    def _make_node(self, name: str) -> None:
        known = self.variables[name]
        variant, memory = self._library.variant(known["type"], known["value"])
        attributes = VariableAttributes(
            display_name=LocalizedText(Text.of("en"), Text.of(name)),
            value=variant,
            data_type=NodeId.of(24),  # BaseDataType; the value says the rest
            value_rank=-2 if isinstance(known["value"], list) else -1,  # any; of an array it would want the dimensions
            access_level=READ | HISTORY_READ if known.get("history") else READ,
            historizing=bool(known.get("history")),
            minimum_sampling_interval=known["sampling_ms"],
        )
        self._library.call(
            "UA_Server_addVariableNode",
            self._server,
            self._node_id(name),
            NodeId.of(OBJECTS_FOLDER),
            NodeId.of(HAS_COMPONENT),
            QualifiedName(self._namespace, Text.of(name)),
            NodeId.of(BASE_DATA_VARIABLE_TYPE),
            attributes,
            None,
            None,
        )
        del memory

    def _node_id(self, name: str) -> NodeId:
        return NodeId.of(name, self._namespace)

    def _get(self, name: str) -> dict[str, Any]:
        if name not in self.variables or not self.variables[name]["is_there"]:
            raise ValueError(f"there is no variable {name}")
        return self.variables[name]


def counted(known: dict[str, Any]) -> Any:
    """The value of a variable after so many changes, an array if it has a length."""
    if "length" in known:
        return [known["changes"] + place for place in range(known["length"])]
    return known["changes"]


class Program:
    """The server and its commands."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options, self._library = options, Library()
        self._trouble = Trouble(self._library, options.get("first_number", 1))
        self.port = options.get("port") or free_port()
        self.certificate = make_certificate(Path(options["pki"]))
        key = self.certificate.with_suffix(".key").read_bytes()
        trusted = [Path(file).read_bytes() for file in options.get("trusted", ())]
        self._server = self._library.new_server(
            self.port,
            self.certificate.read_bytes(),
            key,
            trusted,
            self._configuration(),
            lambda configuration: setattr(self, "_history", History(self._library, configuration)),
        )
        self._plant = Plant(self._library, self._server, options.get("record"), self._trouble, self._history)
        for variable in options.get("variables", ()):
            self._plant.add(**variable)
        self._library.call("UA_Server_run_startup", self._server)

    def work(self, wait_s: float) -> bool:
        """One round: the network, the variables, then whether a command comes within so many seconds."""
        self._library.call("UA_Server_run_iterate", self._server, False)
        self._plant.tick()
        return bool(select.select([0], [], [], wait_s)[0])

    def carry_out(self, do: str, **fields: Any) -> Any:
        """A command's answer."""
        commands = {
            "add": lambda variables: [self._plant.add(**variable) for variable in variables] and None,
            "delete": self._plant.delete,
            "recreate": self._plant.recreate,
            "set": self._plant.set,
            "run": lambda on: setattr(self._plant, "is_running", on),
            "cut": cut,
            "listen": lambda on: setattr(self._trouble, "is_listening", on),
            "shift_clock": lambda ms: setattr(self._trouble, "shift_ms", ms),
            "publish": self._trouble.publish,
            "kill_sessions": partial(self._trouble.kill_sessions, self._server),
            "kill_subscriptions": partial(self._trouble.kill_subscriptions, self._server),
            "raise_event": self._raise_event,
            "status": self._trouble.status,
            "recover": self._recover,
            "stop": lambda: self._library.call("UA_Server_run_shutdown", self._server),
        }
        if do not in commands:
            raise ValueError(f"this server has no command {do}")
        return commands[do](**fields)

    def _raise_event(self, message: str, severity: int, type: str, count: int) -> None:  # noqa: A002 the command's
        for number in range(count):
            text = LocalizedText(Text.of(""), Text.of(f"{message} {number}" if count > 1 else message))
            ids = NodeId.of(SERVER_OBJECT), NodeId.of(EVENT_TYPES[type])
            self._library.call("UA_Server_createEvent", self._server, *ids, severity, text, None, None, None)

    def _recover(self) -> None:
        self._plant.is_running = self._trouble.is_listening = True
        self._trouble.shift_ms, self._trouble.mode = 0, "flow"
        for name, known in self._plant.variables.items():
            if not known["is_there"]:
                self._plant.recreate(name)

    def _configuration(self) -> dict[str, Any]:
        limits, policies = self._options.get("limits", {}), self._options.get("policies", ["None"])
        unknown = set(limits) - {"items_per_call", "items", "items_per_subscription", "sessions", "subscriptions"}
        if unknown or self._options.get("users"):
            raise ValueError(f"this server has no limits {unknown} and no users")
        return {
            "applicationDescription": {"applicationUri": APPLICATION_URI, "applicationName": {"text": "foreign"}},
            "serverUrls": [f"opc.tcp://{HOST}:{self.port}"],
            "shutdownDelay": 0,
            "maxSessions": limits.get("sessions", 50),
            "maxMonitoredItemsPerCall": limits.get("items_per_call", 1000),
            "subscriptions": {
                "maxSubscriptions": limits.get("subscriptions", 50),
                "maxMonitoredItems": limits.get("items", 0),
                "maxMonitoredItemsPerSubscription": limits.get("items_per_subscription", 0),
                "enableRetransmissionQueue": True,
                "publishingIntervalLimits": {"min": 10.0, "max": 3_600_000.0},
                "samplingIntervalLimits": {"min": 0.0, "max": 3_600_000.0},
                "queueSizeLimits": {"min": 1, "max": 10_000},
            },
            "securityPolicyNoneDiscoveryOnly": "None" not in policies,
            **CONFIGURATION,
        }


def make_certificate(folder: Path) -> Path:
    """The server's own certificate (DER) with its key (DER) beside it; made once."""
    certificate_file, key_file = folder / "server.der", folder / "server.key"
    if certificate_file.exists():
        return certificate_file
    folder.mkdir(parents=True, exist_ok=True)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "foreign")])
    names = [x509.UniformResourceIdentifier(APPLICATION_URI), x509.IPAddress(IPv4Address(HOST))]
    uses = dict.fromkeys(["key_agreement", "crl_sign", "encipher_only", "decipher_only"], False)
    uses |= dict.fromkeys(["digital_signature", "content_commitment", "key_encipherment", "data_encipherment"], True)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.KeyUsage(key_cert_sign=True, **uses), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, form = serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL
    key_file.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    certificate_file.write_bytes(certificate.public_bytes(encoding))
    return certificate_file


def free_port() -> int:
    """A port of loopback that nothing listens at."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def say(channel: int, answer: dict[str, Any]) -> None:
    """Print an answer."""
    os.write(channel, (json.dumps(answer) + "\n").encode())


def main() -> None:
    """Start, then work and take commands until standard input ends."""
    channel = os.dup(1)
    os.dup2(2, 1)  # the library logs to standard output, which is the protocol's
    program = Program(json.loads(sys.argv[1]))
    url, certificate = f"opc.tcp://{HOST}:{program.port}", str(program.certificate)
    say(channel, {"ready": {"port": program.port, "url": url, "certificate": certificate, "namespace": NAMESPACE}})
    unread = b""
    while True:
        if b"\n" not in unread:
            if program.work(STEP_S):
                data = os.read(0, 65536)
                if not data:
                    return
                unread += data
            continue
        line, _, unread = unread.partition(b"\n")
        command = json.loads(line)
        try:
            say(channel, {"ok": program.carry_out(**command)})
        except (ValueError, OSError, TypeError, KeyError) as error:
            say(channel, {"error": str(error)})
        if command["do"] == "stop":
            return


if __name__ == "__main__":
    main()
