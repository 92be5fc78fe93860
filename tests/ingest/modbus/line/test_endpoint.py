"""What is learned about an endpoint."""

from pathlib import Path

from agent.ingest.modbus.address import Table
from agent.ingest.modbus.line import Endpoint
from agent.ingest.modbus.plan import Read
from agent.settings.sources import ModbusSourceSettings


def test_a_hold_of_a_unit_that_answers_is_believed_the_third_time() -> None:
    """The unit that was asked instead may have been late itself. One that never answered is believed at once; a silence
    without a hold, or an answer, ends it."""
    endpoint = Endpoint(ModbusSourceSettings("m", Path("t.csv"), 0, host="h"))
    endpoint.answers.note_good(Read(1, Table.HOLDING, 0, 1, ()))
    for _ in range(2):
        endpoint.note_hold(1, 3_000)
    assert endpoint.hold_ms == {}
    endpoint.note_hold(1, 0)
    for hold_ms in (3_000, 3_000, 3_100):
        endpoint.note_hold(1, hold_ms)
    endpoint.note_hold(2, 5_000)
    assert endpoint.hold_ms == {1: 3_100, 2: 5_000}
    endpoint.note_hold(1, 0)
    assert endpoint.hold_ms == {2: 5_000}
