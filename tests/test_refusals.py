"""What the store refuses of a peer's doing has a word in the protocol, whole: a table between two packages that do not know each other."""

from agent.fact_store import errors
from agent.node import _REFUSALS
from agent.replication.errors import ERRORS


def test_every_code_is_in_the_table() -> None:
    """Each error is one of the store's that say "the caller's fault", each code one that peers know."""
    for kind, code in _REFUSALS.items():
        assert issubclass(kind, errors.Refused)
        assert code in ERRORS
        assert not ERRORS[code].retryable
