import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.sources import ModbusSourceSettings, OpcuaSourceSettings, Transport, toml

FILES = {"certificate_file": Path("a.pem"), "private_key_file": Path("a.key")}
USER = {"user_certificate_file": Path("u.der"), "user_private_key_file": Path("u.key")}
INSECURE = {"security_policy": "None", "security_mode": "None", "insecure": True}


def opcua(**settings: object) -> list[str]:
    """The fields at fault in an OPC UA source."""
    made = OpcuaSourceSettings(**{"name": "plc", "url": "opc.tcp://plc:4840", "tags_file": Path("t.csv"), **settings})  # type: ignore[arg-type]
    return [field for field, _ in made.problems()]


def modbus(**settings: object) -> list[str]:
    """The fields at fault in a Modbus source."""
    made = ModbusSourceSettings(
        **{"name": "m", "host": "meter", "tags_file": Path("t.csv"), "address_base": 0, **settings}  # type: ignore[arg-type]
    )
    return [field for field, _ in made.problems()]


@pytest.mark.parametrize(
    "settings, fields",
    [
        (FILES, []),
        (INSECURE, []),
        ({}, ["certificate_file", "private_key_file"]),
        ({"security_policy": "None", "security_mode": "None"}, ["security_policy"]),
        ({"security_policy": "None", "insecure": True}, ["security_mode"]),
        ({**FILES, "insecure": True}, ["insecure"]),
        ({**FILES, "url": "http://plc"}, ["url"]),
        ({**FILES, "url": "opc.tcp://user:secret@plc:4840"}, ["url"]),
        ({**FILES, "url": "opc.tcp://plc:48O0"}, ["url"]),
        ({**FILES, "urls": ("opc.tcp://[fe80::1:4840",)}, ["urls"]),
        ({**FILES, "name": "PLC 1"}, ["name"]),
        ({**FILES, "server_certificate_sha256": "abc"}, ["server_certificate_sha256"]),
        (
            {**FILES, "server_certificate_sha256": "0" * 64, "server_certificate_file": Path("s.pem")},
            ["server_certificate_sha256"],
        ),
        ({**FILES, "user_name": "bsfg"}, ["user_name"]),
        ({**INSECURE, "user_name": "bsfg", "password_file": Path("p")}, []),
        ({**FILES, "security_mode": "Sign", "user_name": "bsfg", "password_file": Path("p")}, []),
        ({**FILES, "user_certificate_file": Path("u.der")}, ["user_certificate_file"]),
        ({**FILES, **USER}, []),
        ({**FILES, **USER, "user_name": "a", "password_file": Path("p")}, ["user_certificate_file"]),
        ({**INSECURE, **USER}, ["user_certificate_file"]),
        ({**FILES, "queue_size": -1}, ["queue_size"]),
        ({**FILES, "publish_requests": 0}, ["publish_requests"]),
        ({**FILES, "liveness_timeout_ms": 2_000}, ["liveness_timeout_ms"]),
        ({**FILES, "reconnect_delay_ms": 5_000, "reconnect_delay_max_ms": 1_000}, ["reconnect_delay_max_ms"]),
        ({**FILES, "reconnect_delay_ms": 5_000, "reconnect_delay_max_ms": 5_000}, []),
        ({**FILES, "events": ("Server", "nsu=urn:x;s=Area")}, []),
        ({**FILES, "events": ("server",)}, ["events"]),
        ({**FILES, "events": ("ns=2;s=Area",)}, ["events"]),
        ({**FILES, "events": ("Server", "Server")}, ["events"]),
        ({**FILES, "events": ("Server",), "mode": "poll"}, ["events"]),
        ({**FILES, "events_severity_min": 1_001}, ["events_severity_min"]),
        ({**FILES, "events_stream": "Events"}, ["events_stream"]),
    ],
)
def test_rules_of_an_opcua_source(settings: dict[str, object], fields: list[str]) -> None:
    """Encryption is the default and only `insecure` in so many words switches it off; no password travels in the
    clear."""
    assert opcua(**settings) == fields


@pytest.mark.parametrize(
    "settings, fields",
    [
        ({}, []),
        ({"address_base": 1}, []),
        ({"address_base": 40001}, []),
        ({"address_base": 2}, ["address_base"]),
        ({"host": ""}, ["host"]),
        ({"host": "10.0.0.1:502"}, ["host"]),
        ({"host": "::1"}, []),
        ({"port": 0}, ["port"]),
        ({"unit_id": 256}, ["unit_id"]),
        ({"registers_per_read_max": 126}, ["registers_per_read_max"]),
        ({"connections_max": 3}, ["connections_max"]),
        ({"poll_interval_ms": 0, "timeout_ms": 0}, ["poll_interval_ms", "timeout_ms"]),
        ({"transport": "rtu", "host": "", "serial_port": "/dev/ttyS1"}, []),
        ({"transport": "rtu", "host": ""}, ["serial_port"]),
        ({"transport": "rtu", "serial_port": "/dev/ttyS1"}, ["host"]),
        ({"transport": "rtu_over_tcp"}, []),
        ({"transport": "rtu_over_tcp", "serial_port": "/dev/ttyS1"}, ["serial_port"]),
        ({"transport": "tls", "ca_file": Path("ca.pem")}, []),
        ({"transport": "tls"}, ["ca_file"]),
        ({"transport": "tls", "ca_file": Path("a"), "key_file": Path("k")}, ["cert_file"]),
        ({"ca_file": Path("ca.pem"), "server_name": "meter"}, ["ca_file", "server_name"]),
        ({"unit_retry_ms": 5_000, "unit_retry_max_ms": 4_999}, ["unit_retry_max_ms"]),
        ({"unit_retry_ms": 5_000, "unit_retry_max_ms": 5_000}, []),
        ({"baud_rate": 0, "stop_bits": 3, "request_pause_ms": -1}, ["baud_rate", "stop_bits", "request_pause_ms"]),
    ],
)
def test_rules_of_a_modbus_source(settings: dict[str, object], fields: list[str]) -> None:
    """Every number has its range, the address base must be one of the three that exist, and a transport has what it
    needs and nothing of another."""
    assert modbus(**settings) == fields


@pytest.mark.parametrize("transport, count, is_allowed", [("tcp", 2, True), ("tcp", 1, False), ("rtu", 2, False)])
def test_a_serial_line_has_no_second_connection(transport: Transport, count: int, is_allowed: bool) -> None:
    """Nor has a device that accepts one only."""
    made = ModbusSourceSettings("m", Path("t.csv"), 0, transport=transport, connections_max=count)
    assert made.has_second_connection is is_allowed


@pytest.mark.parametrize("value", [True, 7, 0.5, "plain", 'a "quoted" \\ path', "opc.tcp://plc:4840"])
def test_a_setting_is_read_as_it_is_written(value: object) -> None:
    """Whatever is in a text, node.toml has it back."""
    assert tomllib.loads(f"x = {toml(value)}") == {"x": value}


def test_sections_of_one_endpoint_describe_its_line_alike() -> None:
    """They share its connection; units, addresses and intervals may differ. Another port is another line."""
    first = ModbusSourceSettings("first", Path("t.csv"), 0, host="gw.example")
    alike = replace(first, name="second", host="GW.example", unit_id=2, address_base=1, poll_interval_ms=10)
    other = replace(first, name="third", transport="rtu_over_tcp", port=503)
    unlike = replace(first, name="fourth", transport="rtu_over_tcp")
    serial = replace(first, name="fifth", transport="rtu", host="", serial_port="/dev/ttyS1")
    faster = replace(serial, name="sixth", baud_rate=9_600)
    identity = IdentitySettings("plant-a", Path())
    assert not [p for p in NodeSettings(identity, modbus=(first, alike, other, serial)).problems() if "modbus" in p[0]]
    found = dict(NodeSettings(identity, modbus=(first, alike, unlike, serial, faster)).problems())
    assert [name for name in found if "modbus" in name] == ["modbus[2].transport", "modbus[4].baud_rate"]
    assert "differs from that of 'first', which has the same line (gw.example:502)" in found["modbus[2].transport"]
