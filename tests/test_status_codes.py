"""Names of status codes, as operators read them."""

import pytest

from agent.status_codes import CLOCK_UNCERTAIN, status_name


@pytest.mark.parametrize(
    "code, name",
    [
        (0, "Good"),
        (0x8031_0000, "BadNoCommunication"),
        (0x8031_0100, "BadNoCommunication"),
        (0x8031_0480, "BadNoCommunication+Overflow"),
        (CLOCK_UNCERTAIN, "Uncertain+Clock"),
        (CLOCK_UNCERTAIN | 0x480, "Uncertain+Clock"),
        (0xC0FF_0000, "Bad 0xC0FF0000"),
    ],
)
def test_a_code_is_named_whatever_its_flags(code: int, name: str) -> None:
    """The lower bits say more of the value, such as its limits; a code without a name shows its severity."""
    assert status_name(code) == name
