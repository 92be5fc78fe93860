"""The check of samples that fakes use."""

import pytest

from agent.message import Json, MessageError, Sample
from tests.support.samples import check_sample


def test_check_sample_names_the_column() -> None:
    """The limits of each column pass, a value beyond is refused by name."""
    good = Sample(1, 0, 1.5, 0)
    for edge in (Sample(2**32, 2**63 - 1, 2**64 - 1, 2**32 - 1), Sample(1, -(2**63), -(2**63), 0), good):
        check_sample(edge)
    for name, values in {
        "tag": [0, -1, 1.0, True, None],
        "source_time_ns": [2**63, -(2**63) - 1, 1.0, True, None],
        "quality": [-1, 2**32, 0.0, True, None],
        "value": [
            2**64,
            -(2**63) - 1,
            [],
            {},
            object(),
            "x" * 65537,
            "\u20ac" * 21846,
            b"x" * 65537,
            Json(b"x" * 65537),
        ],
    }.items():
        for value in values:
            with pytest.raises(MessageError) as caught:
                check_sample(good._replace(**{name: value}))
            assert caught.value.field == name, value
