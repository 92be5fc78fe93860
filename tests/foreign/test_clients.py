"""Two implementations written from the protocol pages alone, a client in JavaScript and a decoder in Perl (client.py),
against a real node and a real broker: they find what `bsfg store export` finds, to the bit."""

import base64
import hashlib
import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child
from agent.fact_store import FactStore, StoreReader
from agent.message import Envelope, Fact, Json, Message, Sample, TagDefinition
from agent.replication import pki
from agent.settings.signing import SigningSettings
from agent.signing.files import load_identity
from tests.foreign.client import DECODERS, ForeignClient, by_identity, decode, differences, exported, read_rows, same
from tests.replication.nodes import write_node_toml
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_order,
    *(pytest.mark.foreign(client) for client in ("client_js", "perl", "zstd")),
]

PLANT, LAB = "plant-a", "lab"
TELEMETRY, OPERATIONAL = "facts.telemetry", "facts.operational"
VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "batches.json"
TAGS = 40
FACTS, AFTER_COPY = 12_000, 1_000
NOW_NS = 1_790_000_000_000_000_000
TEXTS = ("", "on", "NaN", "€ 😀 \u2028\u0000\u007f", "e\u0301", "\ufeffmark", "x" * 3_000)
NUMBERS = (0.0, -0.0, 0.1, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan"), 1e21, -1e-7)
INTS = (0, -1, 127, 2**53 - 1, 2**53 + 1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1)
OTHERS = (None, True, False, b"", b"\x00\xff", Json(b'{"a":[1,2.5,{}],"\xc3\xa9":null}'), Json(b"[]"))
VALUES = (*NUMBERS, *INTS, *TEXTS, *OTHERS)
QUALITIES = (0, 0, 0, 0x80000000, 0x40000000, 0xFFFFFFFF)
TIMES = (0, 1, 1_000_000, -1_000, 7)


def samples(first: int, count: int) -> list[Sample]:
    """Facts of every type of value, some in runs of one type and some in turn, whose times and tags jump."""
    found = []
    for number in range(first, first + count):
        value = VALUES[number % len(VALUES)] if number // 500 % 2 else NUMBERS[number // 7 % len(NUMBERS)]
        tag = 1 + number * 7 % TAGS if number // 1_000 % 2 else 1 + number // 3 % TAGS
        time = NOW_NS + number * 1_000_000 + TIMES[number % 5]
        found.append(Sample(tag, time, value, QUALITIES[number // 5 % 6]))
    return found


def message(number: int) -> Message:
    """A message with every field of the envelope."""
    labels = {"größe": "1 €", "empty": " "} if number % 2 else {}
    envelope = Envelope(f"m/{number}", PLANT, "*", NOW_NS // 10**6 + number, "order-😀", None, labels, "text/x", "s:1")
    return Message(envelope, Fact(f"order:line1/{number}", "step_completed", b'{"n":1e+21,"text":"\xe2\x82\xac"}'))


def noted(fact: Any) -> dict[str, Any]:
    """A fact of the vectors as the decoders write it."""
    if isinstance(fact, dict):
        found = {name: value for name, value in fact.items() if name != "produced_at_unix_ms"}
        return {"kind": "message", "source_time_ns": f"{fact['produced_at_unix_ms'] * 10**6}", **found}
    tag, time, value, quality = fact
    found = {"kind": "sample", "tag": tag, "source_time_ns": str(time), "quality": quality, "value_type": "none"}
    for name, member in (value or {}).items():
        kind = {"float64": "double", "text": "string"}.get(name, name)
        kind = "uint" if kind == "int" and int(member) >= 2**63 else kind
        found |= {
            "value_type": kind,
            "value": base64.b64encode(bytes.fromhex(member)).decode() if kind == "bytes" else member,
        }
    return found


@pytest.mark.parametrize("decoder", DECODERS)
def test_vectors(decoder: str, tmp_path: Path) -> None:
    """Each decoder finds header and facts of every vector, and refuses each that must be refused."""
    file = tmp_path / "batches"
    vectors = json.loads(VECTORS.read_text())
    file.write_bytes(b"".join(bytes.fromhex(vector["sealed"]) for vector in vectors["batches"]))
    found = [row for row in decode(decoder, file)[0] if "kind" in row]
    wanted = []
    for vector in vectors["batches"]:
        header = {name: vector["header"][name] for name in ("stream", "zone", "life")}
        first = vector["header"]["first_sequence"]
        wanted += [{**header, "sequence": first + place, **noted(fact)} for place, fact in enumerate(vector["facts"])]
    assert differences(found, wanted) == ""
    for vector in vectors["refused"]:
        file.write_bytes(bytes.fromhex(vector["sealed"]))
        assert decode(decoder, file)[1], vector["name"]


@dataclass
class Plant:
    """The node of the plant, its broker, and the client of the lab."""

    folder: Path
    node: Child
    client: ForeignClient
    sources: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def config(self) -> Path:
        """The node's settings."""
        return self.folder / "node" / "node.toml"

    @property
    def store(self) -> Path:
        """The node's store."""
        return self.folder / "node" / "state" / "facts.db"

    def opened(self) -> FactStore:
        """The store while the node does not run: another life, which signs."""
        signer = load_identity(SigningSettings(**self.sources[PLANT]), PLANT)
        return FactStore.open(self.store, PLANT, signer=signer)

    def start(self) -> None:
        """Start the node; returns when it is connected."""
        self.node.start()
        self.node.wait_ready(lambda: "node_ready" in self.node.log_text())

    def bsfg(self, *words: object) -> str:
        """What a command at the node prints."""
        command = [sys.executable, "-m", "agent.cli", *map(str, words), "--config", str(self.config)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def exported(self, stream: str = TELEMETRY) -> list[dict[str, Any]]:
        """What `bsfg store export` writes of a stream."""
        lines = self.bsfg("store", "export", "-", "--format", "jsonl", "--stream", stream).split("\n")[:-1]
        return exported(map(json.loads, lines))

    def follow(self, name: str, stream: str = TELEMETRY) -> None:
        """Let the client follow a stream as a new consumer."""
        files = {"rows": self.folder / f"{name}.jsonl", "batches": self.folder / f"{name}.batches"}
        self.client.command("follow", name=name, serving=PLANT, stream=stream, consumer=f"{LAB}.{name}", **files)

    def read(self, name: str, **more: Any) -> dict[str, Any]:
        """Let it read to the end of the log; what it has seen so far."""
        found: dict[str, Any] = self.client.command("read", name=name, **more)
        assert found["errors"] == more.get("errors", []), found
        return found

    def found(self, name: str) -> list[dict[str, Any]]:
        """All facts that it has read."""
        return read_rows(self.folder / f"{name}.jsonl")

    def first_offset(self) -> int:
        """The first offset that the node still holds."""
        with closing(StoreReader(self.store)) as reader:
            return reader.bounds()[TELEMETRY][0]


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    """A store of two lives with awkward facts, a copy of it after the first, its node and the client."""
    folder = tmp_path_factory.mktemp("clients")
    with ExitStack() as stack:
        broker = stack.enter_context(Mosquitto.started(folder / "broker", (PLANT, LAB), [f"{PLANT}:{LAB}"]))
        signers = {zone: pki.create_signer(folder, zone, datetime.now(UTC))[0] for zone in (PLANT, LAB)}
        pin = hashlib.sha256(ssl.PEM_cert_to_DER_cert(signers[LAB].cert_file.read_text())).hexdigest()
        keys = {
            zone: {"key_file": signer.key_file, "certificate_file": signer.cert_file}
            for zone, signer in signers.items()
        }
        streams = json.dumps([TELEMETRY, OPERATIONAL])
        write_node_toml(
            folder / "node",
            broker,
            PLANT,
            f'zone = "{LAB}"\nexports = {streams}\nappends = {streams}\n'
            + "".join(f'[[stream]]\nname = "{name}"\nkeep_hours = 0\n' for name in (TELEMETRY, OPERATIONAL))
            + f'[[origin]]\nzone = "{LAB}"\nsignatures = "required"\npinned = ["{pin}"]\n[signing]\n'
            + "".join(f'{name} = "{file}"\n' for name, file in keys[PLANT].items()),
        )
        mine = broker.identity(LAB)
        client = ForeignClient(
            folder / "client",
            host=broker.host,
            port=broker.port,
            zone=LAB,
            **{name: getattr(mine, f"{name}_file") for name in ("ca", "cert", "key")},
            signer={"cert": signers[LAB].cert_file, "key": signers[LAB].key_file},
            trust={PLANT: [signers[PLANT].cert_file]},
        )
        command = [sys.executable, "-m", "agent.cli", "run", "--config", str(folder / "node" / "node.toml")]
        made = Plant(folder, Child("node", command, folder / "node.log"), client, keys)
        fill(made)
        stack.callback(made.node.kill)
        made.start()
        stack.enter_context(closing(client))
        client.start()
        yield made


def fill(plant: Plant) -> None:
    """Two lives of the plant's store, and `copy.db`, taken between them."""
    plant.store.parent.mkdir()
    definitions = [TagDefinition(f"tag:line1/size-{tag}", unit="m³/h" if tag % 2 else "") for tag in range(1, TAGS + 1)]
    with plant.opened() as store:
        store.appends.define(definitions[: TAGS // 2]).result()
        store.appends.append_samples(
            TELEMETRY, [sample for sample in samples(0, 2_000) if sample.tag <= TAGS // 2]
        ).result()
        store.appends.define(definitions).result()
        for first in range(2_000, FACTS, 1_500):
            store.appends.append_samples(TELEMETRY, samples(first, min(1_500, FACTS - first))).result()
            store.appends.append_message(TELEMETRY, message(first)).result()
            store.appends.append_message(OPERATIONAL, message(first)).result()
    shutil.copy(plant.store, plant.folder / "copy.db")
    with plant.opened() as store:
        store.appends.append_samples(TELEMETRY, samples(FACTS, AFTER_COPY)).result()


def test_the_whole_log(plant: Plant) -> None:
    """Both read every fact as it was exported, in order; every one is proven by its record."""
    plant.follow("whole")
    seen = plant.read("whole")
    wanted = plant.exported()
    assert len(wanted) > 12_000
    plant.rows = plant.found("whole")
    assert differences(plant.rows, wanted) == ""
    assert (seen["facts"], seen["proven"], seen["holes"], seen["omitted"]) == (len(wanted), len(wanted), [], [])
    *rows, chain = decode("perl", plant.folder / "whole.batches")[0]
    without = ("offset", "verified", "unit", "subject", "predicate")
    assert differences(rows, wanted, *without) == ""
    assert chain["continued"] == chain["batches"] - 1


def test_confirmed_facts_are_released(plant: Plant) -> None:
    """A confirmation in the middle of a life releases what is before it; a further consumer is told the hole, and reads
    the rest, of a batch that the range cuts a slice."""
    middle = plant.rows[FACTS // 2]
    (life,) = {row["life"] for row in plant.rows if row["offset"] == middle["offset"]}
    confirmed = plant.client.command("confirm", name="whole", position={"offset": middle["offset"], "life": life})
    assert (confirmed["status"], confirmed["cursor_advanced_to"]) == ("ok", middle["offset"])
    wait_until(lambda: plant.first_offset() > 1, "the release")
    first = plant.first_offset()
    plant.follow("late")
    seen = plant.read("late")
    assert seen["holes"] == [[1, first - 1, "expired"]]
    assert differences(plant.found("late"), plant.exported()) == ""
    last: dict[str, Any] = {"last_offset": first + 9, "life": plant.rows[first]["life"]}
    page = plant.client.ask(PLANT, "FetchRange", stream=TELEMETRY, first_offset=first + 3, **last, limit=100)
    assert (page["covers"], page["slices"], page["proven"]) == ([first + 3, first + 9], 1, 0)
    whole = plant.client.ask(
        PLANT, "FetchRange", stream=TELEMETRY, first_offset=first + 3, **last, limit=100, whole_batches=True
    )
    assert whole["covers"][0] == first
    assert (whole["slices"], whole["proven"]) == (0, 1)
    part = whole["rows"][3:10]
    assert page["rows"] == part


def test_a_restarted_node_goes_on(plant: Plant) -> None:
    """Its next life follows in the log; the client names its whole trail, and reads on behind its last fact."""
    before = len(plant.found("whole"))
    plant.node.stop()
    plant.start()
    plant.bsfg("append", "--stream", TELEMETRY, "order:line1/9", "order_released", '{"after":"restart"}')
    seen = plant.read("whole", fresh=True)
    assert len(plant.found("whole")) == before + 1
    plant.rows = plant.found("whole")
    assert [last["life"] for last in seen["trail"]] == list(dict.fromkeys(row["life"] for row in plant.rows))


def test_append_with_an_artifact(plant: Plant) -> None:
    """Appended facts are stored once however often they are sent; an artifact comes back as it was put."""
    content = bytes(range(256)) * 500
    put = plant.client.command("put", serving=PLANT, data=base64.b64encode(content).decode())
    assert (put["is_complete"], put["received"]) == (True, len(content))
    reference = {"digest": put["digest"], "size": len(content)}
    objects = [{"picture": reference, "z": 1.0, "ä": "€"}, None, [1e21, -0.0], ""]
    new = [
        {
            "envelope": {
                "message_id": f"lab-{number}",
                "from_zone": LAB,
                "to_zone": "*",
                "produced_at_unix_ms": 1,
                "object_media_type": "image/png",
            },
            "fact": {"subject": f"order:line1/{number}", "predicate": "picture_taken", "object": value},
        }
        for number, value in enumerate(objects)
    ]
    outcomes = [
        plant.client.ask(PLANT, "AppendFact", stream=TELEMETRY, messages=new)["header"]["outcomes"] for _ in range(2)
    ]
    assert [[outcome["outcome"] for outcome in some] for some in outcomes] == [
        ["applied"] * 4,
        ["noop_already_applied"] * 4,
    ]
    assert [outcome["offset"] for outcome in outcomes[0]] == [outcome["offset"] for outcome in outcomes[1]]
    assert plant.client.command("get", serving=PLANT, digest=put["digest"]) == {"size": len(content), "isWhole": True}
    plant.read("whole")
    plant.rows = plant.found("whole")
    assert [row["object_json"] for row in plant.rows[-3:]] == ["null", "[1e+21,0]", '""']
    by_offset = {row["offset"]: row for row in plant.exported()}
    assert differences(plant.rows[-5:], [by_offset[row["offset"]] for row in plant.rows[-5:]]) == ""


def test_a_restored_copy_is_a_branch(plant: Plant) -> None:
    """The store is put back to the copy and records other facts at the same offsets. The client's position is unknown
    there; by its trail it reads on from where the copy ends, so it has both sides, and nothing twice."""
    plant.node.stop()
    for file in plant.store.parent.glob("facts.db*"):
        file.unlink()
    shutil.copy(plant.folder / "copy.db", plant.store)
    plant.start()
    for number in range(3):
        plant.bsfg("append", "--stream", TELEMETRY, f"order:line1/{number}", "order_released", '{"after":"restore"}')
    unknown = plant.client.ask(
        PLANT, "FetchFacts", consumer_name=f"{LAB}.whole", stream=TELEMETRY, limit=10, after=position(plant.rows[-1])
    )
    assert unknown["header"]["error"]["code"] == "life_unknown"
    plant.read("whole", errors=["life_unknown"])
    found, wanted = by_identity(plant.found("whole")), by_identity(plant.exported())
    assert {name: same(found[name]) for name in wanted} == {name: same(row) for name, row in wanted.items()}
    assert found.keys() == by_identity(plant.rows).keys() | wanted.keys()
    assert len(found) >= len(plant.rows) + 3
    *rows, _ = decode("perl", plant.folder / "whole.batches")[0]
    assert by_identity(rows).keys() == found.keys()


def position(row: dict[str, Any]) -> dict[str, Any]:
    """The log position of a fact that its node has recorded."""
    return {"offset": row["offset"], "life": row["life"]}


def test_wrong_requests(plant: Plant) -> None:
    """A missing or wrong signature is refused before a change, and not looked at before a read; a request without an
    expiry is refused, an object too deep too."""
    ask = plant.client.ask
    fetch: dict[str, Any] = {"consumer_name": f"{LAB}.whole", "stream": TELEMETRY, "limit": 1}
    for spoil in ("signature", "none"):
        assert ask(PLANT, "FetchFacts", spoil=spoil, **fetch)["header"]["error"]["code"] == "unsigned_request"
        assert ask(PLANT, "GetCursor", spoil=spoil, consumer_name=f"{LAB}.whole")["header"]["status"] == "ok"
    assert ask(PLANT, "FetchFacts", spoil="expiry", **fetch)["header"]["error"]["code"] == "bad_request"
    for depth, code in ((96, "ok"), (97, "bad_request")):
        envelope = {"message_id": "deep", "from_zone": LAB, "to_zone": "*", "produced_at_unix_ms": 1}
        fact = {"subject": "a:b", "predicate": "x", "object": json.loads("[" * depth + "]" * depth)}
        header = ask(PLANT, "AppendFact", stream=TELEMETRY, messages=[{"envelope": envelope, "fact": fact}])["header"]
        assert header.get("error", {"code": "ok"})["code"] == code
    bounds = ask(PLANT, "GetBounds", stream=TELEMETRY)
    assert bounds["is_proven"]
    assert plant.client.command("seen")["ignored"] == 0
