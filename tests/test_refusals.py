"""The codes of the store's errors, which the protocol's table has; the two packages do not import each other."""

from agent.errors import StoreError
from agent.fact_store.core import errors
from agent.replication.protocol.errors import ERRORS


def test_every_code_is_in_the_table() -> None:
    """Each error with a code is a refusal or a lack of room; each code is one of the protocol, and retryable exactly if
    the error is."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StoreError)]
    named = [kind for kind in kinds if kind.code != StoreError.code]
    assert {errors.StoreFull, errors.UnknownConsumer} < set(named)
    for kind in named:
        assert issubclass(kind, errors.Refused | errors.StoreFull)
        assert ERRORS[kind.code].retryable == kind.retryable
    assert ERRORS[StoreError.code].retryable
