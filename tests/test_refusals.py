"""What the store says to a peer's doing has a word in the protocol, whole: a table between two packages that do not know each other."""

from agent.fact_store.log import errors
from agent.node.store_errors import REFUSAL_CODES
from agent.replication.protocol.errors import ERRORS


def test_every_code_is_in_the_table() -> None:
    """Each error is one of the store's that say "the caller's fault", or that there is no room; each code one that peers know, and
    it may be asked again exactly where the store says so."""
    for kind, code in REFUSAL_CODES.items():
        assert issubclass(kind, errors.Refused | errors.StoreFull)
        assert ERRORS[code].retryable == kind.retryable
