import random
import secrets
import uuid

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from agent.signing.keys import SigningKey
from tests.sim import IS_LONG
from tests.support.entropy import seed

pytestmark = pytest.mark.skipif(IS_LONG, reason="random numbers are fresh there")


def drawn() -> list[object]:
    """What the product draws when it makes ids and keys."""
    key = ec.generate_private_key(ec.SECP256R1())
    identities = [x509.random_serial_number(), SigningKey.generate().key_id, key.private_numbers().private_value]
    return [random.random(), secrets.token_hex(8), uuid.uuid4(), *identities]


@pytest.fixture(scope="module")
def wide() -> str:
    """Drawn in the setup of the first test only."""
    return secrets.token_hex(8)


def test_ids_depend_on_the_name_of_the_test(request: pytest.FixtureRequest, wide: str) -> None:
    """Every kind of id is drawn from a seed: the test's, also after a fixture of the module, which has its own."""
    at_start = drawn()
    seed("another test")
    other = drawn()
    seed(request.node.nodeid)
    assert (drawn(), len({*at_start, *other})) == (at_start, 12)
    seed(f"{request.node.parent.nodeid}::wide")
    assert secrets.token_hex(8) == wide


def test_ids_are_the_same_in_each_run() -> None:
    """Another process, another day: the same key."""
    seed("a test")
    assert SigningKey.generate().key_id.hex() == "a6be57fa27db2a8b"
