"""The clock of a store's age, for tests of this folder."""

import pytest

from agent.fact_store.writer import committer
from tests.fact_store.retention.support import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The store's age runs by this clock."""
    found = Clock()
    monkeypatch.setattr(committer.Committer, "age_ms", lambda self: self._age.now_ms(found()))
    return found
