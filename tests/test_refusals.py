"""The table from the store's errors to the protocol's codes, which joins two packages that do not import each other."""

from agent.fact_store.core import errors
from agent.local_socket.serving.store_errors import REFUSAL_CODES
from agent.replication.protocol.errors import ERRORS


def test_every_code_is_in_the_table() -> None:
    """Each error is a refusal or a lack of room; each code is one of the protocol, and retryable exactly if the error
    is."""
    for kind, code in REFUSAL_CODES.items():
        assert issubclass(kind, errors.Refused | errors.StoreFull)
        assert ERRORS[code].retryable == kind.retryable
