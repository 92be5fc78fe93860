"""Our own pair of certificate and key: made once, whoever asks for it at the same time and wherever a process ends."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from agent.ingest.errors import SourceRefused
from agent.ingest.opcua.security import certificate
from agent.ingest.opcua.security.certificate import ensure_certificate, read_certificate, read_key_of
from agent.ingest.opcua.security.certificate_facts import CertificateFacts, facts_of
from agent.ingest.opcua.security.trust_folder import TrustFolder
from tests.ingest.opcua.security.certificates import certificate as made_certificate
from tests.ingest.opcua.security.certificates import der

MAKERS = 6
BITS = 1024  # quick; the length plays no part here


@pytest.fixture
def _quick_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [rsa.generate_private_key(public_exponent=65537, key_size=BITS) for _ in range(MAKERS)]
    remaining = iter(keys * MAKERS)
    monkeypatch.setattr(certificate.rsa, "generate_private_key", lambda **_: next(remaining))


def pair_in(folder: Path) -> CertificateFacts:
    """The certificate, whose key is beside it."""
    found = read_certificate(folder / "own.der")
    read_key_of(found, folder / "own.key")
    return found


PROCESS = """
import json, sys
from pathlib import Path
from agent.ingest.opcua.security import certificate
from agent.ingest.opcua.security.certificate import ensure_certificate, read_certificate, read_key_of
certificate.KEY_BITS = 1024
found = []
for line in sys.stdin:
    own = Path(line.strip())
    ensure_certificate(own / "own.der", own / "own.key", "urn:bsfg:agent")
    facts = read_certificate(own / "own.der")
    read_key_of(facts, own / "own.key")
    found.append(facts.sha256)
print(json.dumps(found))
"""


def test_processes_that_ask_at_once_get_one_pair(tmp_path: Path) -> None:
    """As a node and the commands of a person; in a hundred folders one after the other."""
    folders = "".join(f"{tmp_path / str(number)}\n" for number in range(100))
    command = [sys.executable, "-c", PROCESS]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    with ThreadPoolExecutor(len(processes)) as pool:
        outputs = [job.result()[0] for job in [pool.submit(process.communicate, folders) for process in processes]]
    assert [process.returncode for process in processes] == [0, 0, 0]
    first, *others = [json.loads(output) for output in outputs]
    assert len(first) == 100
    assert others == [first, first]


@pytest.mark.usefixtures("_quick_keys")
def test_a_crash_at_any_step_is_mended_by_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first file, between both, and before the certificate has its name: the next call has a whole pair, and
    a key that was written is kept."""
    write = certificate.write_file
    for writes in range(3):
        folder, left = tmp_path / str(writes), writes

        def failing(path: Path, *arguments: object) -> None:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            write(path, *arguments)  # type: ignore[arg-type]
            if path.name == "own.key":
                raise KeyboardInterrupt

        with monkeypatch.context() as during:
            during.setattr(certificate, "write_file", failing)
            with pytest.raises(KeyboardInterrupt):
                ensure_certificate(folder / "own.der", folder / "own.key", "urn:bsfg:agent")
        key = (folder / "own.key").read_bytes() if (folder / "own.key").exists() else None
        ensure_certificate(folder / "own.der", folder / "own.key", "urn:bsfg:agent")
        pair_in(folder)
        assert key in {None, (folder / "own.key").read_bytes()}
        assert (key is None) == (writes < 2)
        assert sorted(file.name for file in folder.iterdir()) == ["own.der", "own.key"]


def test_half_a_pair_is_refused_and_so_is_a_key_that_everybody_may_read(tmp_path: Path) -> None:
    """Neither is replaced: the server trusts the certificate. The reason says how to mend it."""
    own, key = tmp_path / "own.der", tmp_path / "own.key"
    ensure_certificate(own, key, "urn:bsfg:agent")
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    with pytest.raises(SourceRefused, match=r"own\.key can be read by every user; chmod 600"):
        pair_in(tmp_path)
    key.unlink()
    with pytest.raises(SourceRefused, match=r"own\.key is missing"):
        ensure_certificate(own, key, "urn:bsfg:agent")


def test_none_is_made_by_a_clock_that_was_never_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 1970 would have ended before it is used. When the clock is set, the next attempt makes it."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]  # noqa: ARG003
            return datetime(1970, 1, 1, 0, 5, tzinfo=UTC)

    with monkeypatch.context() as during:
        during.setattr(certificate, "datetime", Clock)
        with pytest.raises(SourceRefused, match=r"clock says 1970-01-01 00:05 UTC: it was never set; set it"):
            ensure_certificate(tmp_path / "own.der", tmp_path / "own.key", "urn:bsfg:agent")
    assert list(tmp_path.iterdir()) == []
    ensure_certificate(tmp_path / "own.der", tmp_path / "own.key", "urn:bsfg:agent")
    pair_in(tmp_path)


def test_sources_that_refuse_one_server_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several sources at one server, and several servers, with a folder that is full: each file is whole, and no source
    fails for what another one does."""
    monkeypatch.setattr("agent.ingest.opcua.security.trust_folder.REJECTED_MAX", 3)
    folder = TrustFolder(tmp_path)
    shown = [facts_of(der(made_certificate("server", serial=number))) for number in range(1, 7)]
    with ThreadPoolExecutor(MAKERS) as pool:
        for _ in range(50):
            list(pool.map(folder.reject, shown * 2))
    files = list((tmp_path / "rejected").iterdir())
    assert {facts_of(file.read_bytes()).sha256 for file in files} <= {facts.sha256 for facts in shown}
