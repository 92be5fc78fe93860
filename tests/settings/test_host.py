"""The check of a host says what to write instead."""

import pytest

from agent.settings.host import host_and_port, host_problem, url_problem


@pytest.mark.parametrize(
    "host, why",
    [
        ("10.0.0.1:502", 'write host = "10.0.0.1" and port = 502'),
        ("[fe80::1]:8883", 'write host = "fe80::1" and port = 8883'),
        ("[::1]", 'write host = "::1"'),
        ("broker:", "must be a host name"),
        ("tcp://broker", "must be a host name"),
        ("user@broker", "must be a host name"),
        ("", "must be a host name"),
        ("broker..example", "must be a host name"),
        ("b" * 64, "must be a host name"),
        ("::1", ""),
        ("fe80::1%eth0", ""),
        ("broker.example", ""),
    ],
)
def test_what_is_no_host(host: str, why: str) -> None:
    """A port and brackets are named with the settings to write; an address of IPv6 stands as it is."""
    assert (host_problem(host) == "") == (why == "")
    assert why in host_problem(host)


def test_a_port_behind_an_address() -> None:
    """An address of IPv6 has brackets in front of its port, as in a URL."""
    assert [host_and_port(host, 8883) for host in ("::1", "10.0.0.1")] == ["[::1]:8883", "10.0.0.1:8883"]


@pytest.mark.parametrize(
    "url, why",
    [
        ("hook.example", "must look like http://host/path"),
        ("ftp://hook.example", "must look like http://host/path"),
        ("http://:80/", "must look like http://host/path"),
        ("http://[::1/", "must look like http://host/path"),
        ("http://hook:8O/", "has a port that is not 1 to 65535"),
        ("http://hook:99999/", "has a port that is not 1 to 65535"),
        ("http://hook:0/", "has a port that is not 1 to 65535"),
        ("http://my hook/", "must look like http://host/path"),
        ("http://[::1]:8080/a b", ""),
    ],
)
def test_what_is_no_url(url: str, why: str) -> None:
    """A URL that no library could open is refused with the reason, and does not end the reading of node.toml."""
    assert url_problem(url, "http://host/path") == why
