"""The error of this package: a key, certificate or list of keys cannot be used.

SigningError    a file is missing, malformed, readable by others, or of the wrong kind (the operator acts; no retry)
"""

from __future__ import annotations

from agent.errors import BsfgError


class SigningError(BsfgError):
    """A signing key, signer certificate or list of compromised keys cannot be used; `hint` says what to do."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint
