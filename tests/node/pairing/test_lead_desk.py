"""Who is told who leads: only the nodes of a zone that two peers record, and only what is on the disk."""

import time
from pathlib import Path
from typing import Any

import pytest

from agent.node.pairing import LeadDesk
from agent.node.pairing.lead_desk import read_leads
from agent.pair import Claim, ClaimState, PartnerWord
from agent.replication.protocol.messages import ClaimEntry, ClaimLead, LeadAnswer
from agent.replication.serving import Caller, Refuse, store_name_of

BOXES = {"plant-a": "plant-a", "plant-a-2": "plant-a", "plant-c": "plant-c", "plant-c-2": "plant-c"}


def desk_at(folder: Path) -> LeadDesk:
    """A witness whose file is in this folder."""
    return LeadDesk(BOXES, folder / "leads.json", lambda: store_name_of("idmz", "idmz", bytes(16)))


def claim(node: str = "plant-a", *, state: Any = "follows", zone: str = "plant-a", term: int = 5) -> ClaimLead:
    """A claim of a node."""
    entry = ClaimEntry(node=node, instance="ab" * 16, state=state, term=term)
    return ClaimLead(zone=zone, claim=entry)


async def asked(desk: LeadDesk, request: ClaimLead, node: str = "") -> LeadAnswer:
    """The good answer to a request."""
    outcome = await desk.answer(Caller(node or request.claim.node, "i", b"c" * 8), request)
    assert not isinstance(outcome, Refuse), outcome
    answer = outcome[0]  # type: ignore[index]
    assert isinstance(answer, LeadAnswer)
    return answer


@pytest.mark.parametrize(
    "caller, request_",
    [
        ("plant-b", claim("plant-b", zone="plant-b")),
        ("plant-a", claim("plant-a", zone="plant-b")),
        ("plant-a", claim("plant-a-2")),
        ("idmz", claim("plant-a")),
    ],
    ids=["of one node alone", "for another zone", "for the other node", "by a third node"],
)
async def test_a_node_claims_for_itself_alone(caller: str, request_: ClaimLead, tmp_path: Path) -> None:
    """A node that is none of two of the zone, or speaks for another node or zone, is refused and nothing is lent."""
    desk = desk_at(tmp_path)
    outcome = await desk.answer(Caller(caller, "i", b"c" * 8), request_)
    assert isinstance(outcome, Refuse)
    assert outcome.code == "lead_not_yours"
    assert not (tmp_path / "leads.json").exists()


@pytest.mark.parametrize(
    "partner, said", [("", "plant-a has no [pair]"), ("plant-a-3", "[pair] of plant-a names plant-a-3, not plant-a-2")]
)
async def test_a_node_is_no_witness_of_its_own_zone(partner: str, said: str, tmp_path: Path) -> None:
    """The other node of our zone asks, and [pair] here does not name it, or does so only since a reload: it is refused
    with what is written here, and nothing is lent."""
    desk = LeadDesk(BOXES, tmp_path / "leads.json", lambda: store_name_of("plant-a", "plant-a", bytes(16)), partner)
    outcome = await desk.answer(Caller("plant-a-2", "i", b"c" * 8), claim("plant-a-2"))
    assert isinstance(outcome, Refuse)
    assert outcome.code == "lead_not_yours"
    assert said in outcome.message
    assert not (tmp_path / "leads.json").exists()


async def test_the_lead_is_on_the_disk_before_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that refuses costs the answer; the next claim is answered as soon as the lead is stored, with a term that
    no other node gets after a restart, whichever zone was lent one later."""
    now_ns = [0]
    monkeypatch.setattr("agent.node.pairing.lead_desk.time.monotonic_ns", lambda: now_ns[0])
    desk, now_ns[0] = desk_at(tmp_path), 10_000_000_000
    (tmp_path / "leads.json").mkdir()
    outcome = await desk.answer(Caller("plant-a", "i", b"c" * 8), claim())
    assert isinstance(outcome, Refuse)
    assert outcome.code == "store_unavailable"
    (tmp_path / "leads.json").rmdir()
    answer = await asked(desk, claim())
    assert answer.leader == "plant-a"
    assert [*read_leads(tmp_path / "leads.json")] == ["plant-a"]
    await asked(desk, claim("plant-c", zone="plant-c"))
    assert [lead.node for lead in read_leads(tmp_path / "leads.json").values()] == ["plant-a", "plant-c"]
    again = desk_at(tmp_path)
    now_ns[0] += 60_000_000_000
    other = await asked(again, claim("plant-a-2", term=1))
    assert other.leader == "plant-a-2"
    assert other.term > answer.term


async def test_a_renewal_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader claims several times a second: the file is written when holder or term change, and not else."""
    now_ns = [0]
    monkeypatch.setattr("agent.node.pairing.lead_desk.time.monotonic_ns", lambda: now_ns[0])
    desk, now_ns[0] = desk_at(tmp_path), 10_000_000_000
    answer = await asked(desk, claim())
    (tmp_path / "leads.json").unlink()
    for _ in range(3):
        renewed = await asked(desk, claim(state="leads", term=answer.term))
        assert (renewed.leader, renewed.term) == ("plant-a", answer.term)
    assert not (tmp_path / "leads.json").exists()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"plant-a": 7}', b'{"plant-a": ["a", "b", "c", "d"]}', b"\xff", b"[" * 100_000]
)
def test_a_spoiled_file_counts_as_none(content: bytes, tmp_path: Path) -> None:
    """A witness with a spoiled file starts and lends anew."""
    (tmp_path / "leads.json").write_bytes(content)
    assert read_leads(tmp_path / "leads.json") == {}


async def test_the_partner_hears_and_is_heard(tmp_path: Path) -> None:
    """What the other node of our own zone claims is passed on, and it is answered with what this node claims."""
    own_name = store_name_of("plant-a", "plant-a", bytes(16))
    desk, heard = LeadDesk(BOXES, tmp_path / "leads.json", lambda: own_name, "plant-a-2"), list[PartnerWord]()
    desk.hear_partner = heard.append
    assert isinstance(await desk.answer(Caller("plant-a-2", "i", b"c" * 8), claim("plant-a-2")), Refuse)
    own = Claim("plant-a", "cd" * 16, ClaimState.LEADS, 9, 8, -1, gaps_stored=True)
    desk.own_claim = lambda: (own, "plant-a")
    answer = await asked(desk, claim("plant-a-2"))
    assert answer.other == ClaimEntry(
        node="plant-a", instance="cd" * 16, state="leads", term=9, highest=8, fitness=0, gaps_stored=True
    )
    assert (answer.leader, answer.witness_says) == ("", "plant-a")
    assert answer.unix_ms == pytest.approx(time.time_ns() // 10**6, abs=10_000)
    assert heard[-1].claim == Claim("plant-a-2", "ab" * 16, ClaimState.FOLLOWS, 5)
    assert not (tmp_path / "leads.json").exists()
