"""A plugin of pytest for random numbers that repeat: what a test, and the product in its process, draws depends on the
test's name only.

`make test` uses it, because an assertion that one random key in a thousand breaks would decide by chance. RSA keys, TLS
and other processes stay random.
"""

import os
import random
import tempfile
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

_bytes = random.Random()


def pytest_configure() -> None:
    """Replace the operating system's random bytes, and the keys that OpenSSL draws itself."""
    os.urandom = _bytes.randbytes
    vars(random)["_urandom"] = _bytes.randbytes  # of SystemRandom, and so of `secrets`
    ed25519.Ed25519PrivateKey.generate = lambda: ed25519.Ed25519PrivateKey.from_private_bytes(os.urandom(32))
    ec.generate_private_key = _elliptic_key
    hypothesis.register_random(_bytes)  # the same in each example


def seed(name: str) -> None:
    """Begin with the numbers of that name."""
    _bytes.seed(name)
    random.seed(name)
    tempfile._get_candidate_names().rng.seed(name)  # a name that exists is not taken twice


def pytest_runtest_logstart(nodeid: str) -> None:
    """Each test draws its own numbers."""
    seed(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """So does each module when it is imported."""
    seed(collector.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """So does each fixture of several tests, whichever comes first; its test does not notice."""
    if fixturedef.scope == "function":
        return (yield)
    states = _bytes.getstate(), random.getstate()
    seed(f"{request.node.nodeid}::{fixturedef.argname}")
    try:
        return (yield)
    finally:
        _bytes.setstate(states[0])
        random.setstate(states[1])


def _elliptic_key(curve: ec.EllipticCurve, backend: Any = None) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(1 + int.from_bytes(os.urandom(64)) % (curve.group_order - 1), curve, backend)
