"""The identity of a node while its files change, without a broker."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.replication import pki
from agent.replication.pki import IdentityProblem, PkiError
from agent.replication.pki import identity as tested
from agent.replication.pki.identity import Identity, IdentityWatcher

EXPIRED = IdentityProblem(Path("idmz.pem"), "the certificate expired at noon", "renew it")


@pytest.fixture
def own(folder: Path) -> Identity:
    """The identity of idmz, loaded and accepted by the broker."""
    found = Identity("private", "idmz", folder / "ca.pem", folder / "zones/idmz.pem", folder / "zones/idmz.key")
    found.context()
    found.accepted()
    return found


def test_a_problem_names_its_file_once() -> None:
    """The message of a file error begins with the file."""
    missing = IdentityProblem(Path("idmz.key"), "idmz.key: No such file or directory", "correct the path")
    assert missing.what == "idmz.key: No such file or directory"
    assert EXPIRED.what == "idmz.pem: the certificate expired at noon"


def test_a_certificate_that_expires_in_its_file_is_noticed(own: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unchanged files are not checked at each connection, but periodically: that is how a certificate that has expired
    since is named while the connection is still open."""
    monkeypatch.setattr(tested, "check_identity", lambda *_files: [EXPIRED])
    assert own.check_files() == ()
    assert own.check_files(is_retry=True) == [EXPIRED]


def test_an_expired_certificate_is_not_presented(own: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker would refuse it without naming the reason."""
    monkeypatch.setattr(tested, "check_times", lambda *_files: [EXPIRED])
    with pytest.raises(PkiError, match="expired at noon"):
        own.context()


def test_one_that_was_refused_is_tried_when_the_one_in_force_has_expired(
    own: Identity, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker had refused the next one before, as one of an authority that it did not know yet: without another try
    the node would stay cut off until its restart."""
    pki.issue_zone(folder, "idmz", datetime.now(UTC), force=True)
    assert own.check_files() == []
    renewed = own.context()
    own.refused("unknown authority")
    with monkeypatch.context() as patched:
        patched.setattr(tested, "check_times", lambda *_files: [EXPIRED])
        with pytest.raises(PkiError, match="expired at noon"):
            own.context()
    assert own.context() is renewed


def test_a_file_that_changes_while_it_is_loaded_is_not_offered(
    own: Identity, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was loaded may be of two different certificates: the node goes on with the identity in force, and takes the
    new files when they stay the same."""
    load = tested.client_context
    pki.issue_zone(folder, "idmz", datetime.now(UTC), force=True)

    def replaced(ca_file: Path, cert_file: Path, key_file: Path) -> ssl.SSLContext:
        context = load(ca_file, cert_file, key_file)
        with cert_file.open("ab") as file:
            file.write(b"\n")
        return context

    with monkeypatch.context() as patched:
        patched.setattr(tested, "client_context", replaced)
        (problem,) = own.check_files()
    assert "being replaced" in problem.why
    assert not own.is_offered
    assert own.check_files() == []
    assert own.is_offered


def test_bytes_that_move_from_one_file_to_another_are_a_change(own: Identity, folder: Path) -> None:
    """A certificate that was copied to the end of the authorities, instead of into its own file, is a changed
    identity."""
    with (folder / "ca.pem").open("ab") as authorities:
        authorities.write((folder / "zones/idmz.pem").read_bytes())
    (folder / "zones/idmz.pem").unlink()
    assert own.check_files() != ()


async def test_each_of_two_identities_is_checked(own: Identity, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node at two brokers has two: a replaced file of either is noticed, and all are checked again periodically."""
    files = folder / "ca.pem", folder / "zones/plant-a.pem", folder / "zones/plant-a.key"
    other, checked = Identity("second", "plant-a", *files), list[tuple[str, bool]]()
    check = Identity.check_files

    def check_files(self: Identity, *, is_retry: bool = False) -> object:
        checked.append((self._name, is_retry))
        return check(self, is_retry=is_retry)

    monkeypatch.setattr(Identity, "check_files", check_files)
    watcher = IdentityWatcher([own, other])
    for _ in range(2):
        await watcher._check()
    assert checked == [("private", True), ("second", True), ("private", False), ("second", False)]
    assert other.is_offered
