"""The container of a backup: what is put in comes out, and everything else is refused before a byte is used."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.backup.contents import (
    BACKUP_BYTES_MAX,
    MAGIC,
    Backup,
    BackupError,
    Derive,
    Place,
    SavedFile,
    derive,
    open_backup,
    problem_of,
    seal_backup,
    targets_of,
)

SALT, NONCE = bytes(range(16)), bytes(range(12))


def cheap(passphrase: bytes = b"correct horse") -> Derive:
    """A derivation that costs nothing; scrypt has a test of its own."""
    return lambda salt: hashlib.blake2b(passphrase + salt, digest_size=48).digest()


PARTS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1, max_size=20).filter(
    lambda part: part not in {".", ".."} and "/" not in part
)
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
FILES = st.builds(SavedFile, st.sampled_from([Place.CONFIG, Place.AUTHORITY]), NAMES, st.binary(max_size=200))
BACKUPS = st.builds(
    Backup,
    version=st.text(max_size=8),
    made_unix_ms=st.integers(0, 2**50),
    zone=st.text(max_size=8),
    left_out=st.lists(st.text(max_size=20), max_size=2).map(tuple),
    files=st.lists(FILES, max_size=6, unique_by=lambda file: (file.place, file.name)).map(tuple),
)
SMALL = Backup("1.0", 1, "plant-a", "/etc/bsfg/plant-a.toml", files=(SavedFile(Place.CONFIG, "plant-a.toml", b"x"),))


@given(BACKUPS)
def test_what_is_sealed_opens(backup: Backup) -> None:
    """Every backup comes out as it went in, under the passphrase it was made with."""
    assert open_backup(seal_backup(backup, cheap(), SALT, NONCE), cheap()) == backup


@given(st.data())
def test_no_byte_may_change(data: st.DataObject) -> None:
    """A file with any bit changed, cut at any byte, or with bytes after its end is refused."""
    sealed = seal_backup(SMALL, cheap(), SALT, NONCE)
    at = data.draw(st.integers(0, len(sealed) - 1))
    flipped = bytearray(sealed)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for wrong in (bytes(flipped), sealed[:at], sealed + data.draw(st.binary(min_size=1, max_size=5))):
        with pytest.raises(BackupError):
            open_backup(wrong, cheap())


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_refused(noise: bytes, begins_well: bool) -> None:
    """Bytes that are no backup are refused with an error that says what to do."""
    with pytest.raises(BackupError) as caught:
        open_backup(MAGIC + noise if begins_well else noise, cheap())
    assert caught.value.hint


def test_each_reason_is_told_apart() -> None:
    """The wrong passphrase, a cut copy, a changed byte and a later version have messages of their own."""
    sealed = seal_backup(SMALL, cheap(), SALT, NONCE)
    for wrong, key_of, said in [
        (sealed, cheap(b"another"), "does not open with this passphrase"),
        (sealed[:-1], cheap(), f"has {len(sealed) - 1} bytes instead of {len(sealed)}"),
        (sealed[:-1] + bytes([sealed[-1] ^ 1]), cheap(), "was altered"),
        (MAGIC[:-1] + b"\x02" + sealed[len(MAGIC) :], cheap(), "version 2"),
        (b"a photo", cheap(), "is not a backup"),
    ]:
        with pytest.raises(BackupError, match=said):
            open_backup(wrong, key_of)


def test_scrypt_is_what_stands_between() -> None:
    """The passphrase goes through scrypt with 64 MiB; the derivation is fixed, or no older backup would open."""
    assert derive(b"correct horse battery")(SALT).hex() == (
        "590bcc9d43982d307498eb55128f972cfcbd264410029d44b3ef46bc6f3212be61b9603fa7fa167e8cb81c39f3a5061e"
    )
    assert derive(b"correct horse batterz")(SALT) != derive(b"correct horse battery")(SALT)


@pytest.mark.parametrize(
    "name",
    ["/etc/shadow", "..", "../x", "a/../../x", "a//b", "a/", ".", "", "a/./b", "a\nb", "a\0b", "a" * 241, "b/" * 600],
)
def test_a_name_stays_in_its_folder(name: str) -> None:
    """No absolute name, no part that leads up, no control character and no endless name is sealed or opened."""
    assert problem_of(Backup("1", 1, files=(SavedFile(Place.CONFIG, name, b""),)))


def test_what_a_backup_may_not_hold() -> None:
    """Two files of one name, state besides the identity and what was learned, and more than fits into memory."""
    file = SavedFile(Place.CONFIG, "a", b"")
    assert "twice" in problem_of(Backup("1", 1, files=(file, file)))
    assert "facts.db" in problem_of(Backup("1", 1, files=(SavedFile(Place.STATE, "facts.db", b""),)))
    assert not problem_of(Backup("1", 1, files=(SavedFile(Place.STATE, "opcua/own.der", b""),)))
    half = bytes(BACKUP_BYTES_MAX // 2 + 1)
    large = (SavedFile(Place.CONFIG, "a", half), SavedFile(Place.CONFIG, "b", half))
    assert "bytes" in problem_of(Backup("1", 1, files=large))
    assert "files" in problem_of(Backup("1", 1, files=(file,) * 50_001))


@pytest.mark.parametrize("place", range(4))
def test_node_toml_is_the_last_file_that_is_restored(place: int) -> None:
    """Wherever it is in the backup: if its renaming is seen after a power cut, the files that it names are there. Files
    of a folder that is not restored are passed over."""
    files = [SavedFile(Place.CONFIG, "tags/a.csv", b""), SavedFile(Place.STATE, "opcua/own.der", b"")]
    files.append(SavedFile(Place.AUTHORITY, "ca.pem", b""))
    files.insert(place, SavedFile(Place.CONFIG, "old.toml", b""))
    config, state = Path("/etc/bsfg"), Path("/var/lib/bsfg/a")
    backup = Backup("1", 1, config_file="/somewhere/old.toml", files=tuple(files))
    targets = targets_of(backup, config / "a.toml", {Place.CONFIG: config, Place.STATE: state})
    assert [target.path for target in targets] == [config / "tags/a.csv", state / "opcua/own.der", config / "a.toml"]
