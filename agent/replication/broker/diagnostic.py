"""What a check tells: one finding for each thing tried, good or bad, and what to do about a bad one.

Findings are told as they are made, in the order in which the things were tried; nothing is decided by them here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """What a finding means for the operator: all is well, worth knowing, to be mended."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing tried; `hint` says what to do about a bad one."""

    outcome: Outcome
    what: str
    hint: str = ""
