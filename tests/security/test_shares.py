"""A zone that may append floods the store that takes its facts, while an honest plant is pulled into it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.attacker import STACK
from tests.security.site import EVIL, IDMZ, PLANT, STREAM, TELEMETRY, Site, running_site

pytestmark = [pytest.mark.system, pytest.mark.skipif(bool(STACK.why_not()), reason="the attacker's libraries")]

FACTS, FACT_BYTES = 119, 60_000


@pytest.fixture
def small_store(tmp_path: Path) -> Iterator[Site]:
    """plant-a and idmz, whose store may have 12 MB. Nothing reads from idmz, so no fact is ever confirmed there."""
    store = {IDMZ: "[store]\nbytes_max = 12_000_000\n"}
    with running_site(tmp_path, honest=(PLANT, IDMZ), taken=(EVIL,), more=store) as site:
        yield site


def append(site: Site, number: int) -> dict[str, object]:
    """evil appends a message of 60 kB that does not compress. The header of the answer."""
    envelope = {"message_id": f"evil-{number}", "from_zone": EVIL, "to_zone": "*", "produced_at_unix_ms": 1}
    fact = {"subject": "order:line1/1", "predicate": "step_completed", "object": site.noise(number, FACT_BYTES)}
    message = {"envelope": envelope, "fact": fact}
    return site.attacker.ask(EVIL, IDMZ, "AppendFact", stream=STREAM, messages=[message])


def test_a_flood_of_appends_takes_no_room_of_others(small_store: Site) -> None:
    """evil appends 119 messages of 60 kB, then twice as many. It is refused once its share and what is common are used
    up, and the status of idmz names it. The facts that were there stay, and those of the plant are stored, in the
    flooded stream and in another."""
    site = small_store
    before = [site.append(PLANT, stream=stream) for stream in (STREAM, TELEMETRY)]
    for message_id, stream in zip(before, (STREAM, TELEMETRY), strict=True):
        site.wait_fact(message_id, IDMZ, stream=stream)
    answers = [append(site, number) for number in range(3 * FACTS)]
    refused = [answer["error"] for answer in answers if answer.get("status") != "ok"]
    assert {code["code"] for code in refused} == {"store_full"}  # type: ignore[index]
    assert len(answers) - len(refused) > 12_000_000 // 12 // FACT_BYTES, "its share is a twelfth"
    subjects = {reason["subject"]: reason["problem"] for reason in site.status(IDMZ)["reasons"]}
    assert subjects[f"zone {EVIL}"] == "share_used_up"
    assert "appends_refused" not in subjects.values()
    for number, stream in enumerate((STREAM, TELEMETRY) * 7):
        content = site.noise(number, FACT_BYTES)
        site.wait_fact(site.append(PLANT, stream, b'"' + content.encode() + b'"'), IDMZ, stream=stream)
    assert {*before} <= {*site.ids(IDMZ), *site.ids(IDMZ, TELEMETRY)}
    assert not any("facts_expired" in incident for incident in site.incidents(IDMZ))
