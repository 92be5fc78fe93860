"""The check of a host says what to write instead."""

import pytest

from agent.settings.host import host_problem


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
