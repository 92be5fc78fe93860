"""Up to when another gateway recorded a source, from what is here when this one takes over."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.ingest import quality
from agent.ingest.completeness import Stored
from agent.ingest.lifecycle import Newest
from agent.ingest.supervision.lead_change import EarlierLead, led_until, undelivered_ns
from agent.message import Sample
from agent.settings.sources import ModbusSourceSettings, OpcuaSourceSettings

S = 1_000_000_000
GOOD = [Newest(Sample(number, time * S, 1.0), time * S) for number, time in ((1, 40), (2, 60))]
LOST = [found._replace(sample=found.sample._replace(quality=quality.BAD_COMMUNICATION_ERROR)) for found in GOOD]


@pytest.mark.parametrize(
    "lead_s, own, newest, ahead_ns, led",
    [
        pytest.param(90, None, GOOD, 0, Stored(89 * S, 0), id="heard to lead"),
        pytest.param(90, None, GOOD, 7 * S, Stored(96 * S, 7 * S), id="source ahead of this node"),
        pytest.param(90, Stored(50 * S, 7 * S), GOOD, None, Stored(96 * S, 7 * S), id="ahead in the last process"),
        pytest.param(90, Stored(50 * S, 7 * S), GOOD, 2 * S, Stored(91 * S, 2 * S), id="read anew"),
        pytest.param(90, None, GOOD, None, Stored(89 * S), id="clock not read"),
        pytest.param(90, None, LOST, 0, Stored(39 * S, 0), id="all tags lost there"),
        pytest.param(90, None, [GOOD[0], LOST[1]], 0, Stored(89 * S, 0), id="one tag lost there"),
        pytest.param(90, None, [], 0, Stored(89 * S, 0), id="no sample"),
        pytest.param(90, Stored(89 * S, 0), GOOD, 0, None, id="this node as late"),
        pytest.param(90, Stored(89 * S - 1, 0), GOOD, 0, Stored(89 * S, 0), id="this node earlier by a nanosecond"),
        pytest.param(None, None, GOOD, 0, Stored(59 * S, 0), id="not heard, samples"),
        pytest.param(None, None, GOOD, -50 * S, Stored(49 * S, -50 * S), id="not heard, samples of the future"),
        pytest.param(None, Stored(10 * S, 0), GOOD, 0, None, id="not heard, own process"),
        pytest.param(None, None, [], 0, None, id="not heard, no sample"),
        pytest.param(None, None, [Newest(LOST[0].sample, 0)], 0, None, id="not heard, no good sample"),
    ],
)
def test_led_until(
    lead_s: int | None, own: Stored | None, newest: list[Newest], ahead_ns: int | None, led: Stored | None
) -> None:
    """Now is second 100 here; a gateway that ends has not received the values of the last second."""
    lead = EarlierLead(None if lead_s is None else lead_s * S)
    found = led_until(lead, own, newest, ahead_ns=ahead_ns, undelivered_ns=S, now_ns=100 * S)
    assert found == led


def test_what_is_not_delivered() -> None:
    """A server may hold the samples of two publishing intervals and take another one; what is polled is here."""
    plc = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), sampling_interval_ms=500)
    assert undelivered_ns(replace(plc, publishing_interval_ms=1_000)) == 2_500_000_000
    assert undelivered_ns(replace(plc, mode="poll")) == 0
    assert undelivered_ns(ModbusSourceSettings("meter", Path("t.csv"), 0, host="meter")) == 0
