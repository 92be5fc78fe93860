"""Modbus sources whose verdicts do not depend on how quickly the machine gives them their turn."""

import pytest

from agent.ingest.modbus import source


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends when it has found what it looks for, not with its slot: a machine that stalls within a slot would
    end it, and the values that are left are rightly not read in that poll."""
    monkeypatch.setattr(source, "SEARCH_PART", 1_000.0)
