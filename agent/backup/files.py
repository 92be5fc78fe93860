"""Reads the files of a node and of an authority, writes backups, and restores files: all of them or none.

Every file is first written under a temporary name beside its place and synced. Only when all are there are they
renamed, node.toml last. An error before that leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from agent.backup.contents import (
    BACKUP_BYTES_MAX,
    STATE_FOLDERS,
    BackupError,
    Place,
    RestoreTarget,
    SavedFile,
    place_of,
)
from agent.config import profile_file
from agent.file_replace import sync_folder
from agent.settings.node import NodeSettings

REJECTED = "rejected"  # certificates of servers that were refused as unknown
_HEAD_BYTES_MAX = 1024 * 1024  # what a backup has besides the bytes of its files: names


@dataclass(frozen=True, slots=True)
class Rights:
    """Modes and owner of restored files and folders; -1: whoever restores."""

    file_mode: int = 0o600
    folder_mode: int = 0o700
    user: int = -1
    group: int = -1


def collect_node(settings: NodeSettings, config_file: Path) -> tuple[list[SavedFile], list[str]]:
    """The files of a node, and what is left out because it is elsewhere. Raises BackupError."""
    folder = config_file.absolute().parent
    folders = {Place.STATE: settings.node.state_dir, Place.CONFIG: folder}
    found = {(Place.CONFIG, config_file.name): _read(config_file)}
    left_out: list[str] = []
    for setting, path in _named(settings, folder):
        if not _exists(path):  # made at first use, or missed by bsfg check
            continue
        for file in _walk(path) if path.is_dir() else [path]:
            if (key := place_of(file, folders)) is None:
                left_out.append(f"{setting}: {file} is not in {folder}; copy it by hand")
            elif key not in found:
                found[key] = _read(file, is_link_allowed=key[0] is Place.CONFIG)
    for name in STATE_FOLDERS:
        for file in _walk(settings.node.state_dir / name):
            key = Place.STATE, file.relative_to(settings.node.state_dir).as_posix()
            if key not in found:
                found[key] = _read(file, is_link_allowed=False)
    in_order = sorted(found.items(), key=lambda entry: (entry[0][0].value, entry[0][1]))
    return [SavedFile(place, name, data) for (place, name), data in in_order], left_out


def collect_authority(folder: Path) -> list[SavedFile]:
    """Every file of an authority. Raises BackupError."""
    if not (folder / "ca.pem").is_file():
        raise BackupError(f"{folder} is not an authority: it has no ca.pem", "give the folder of bsfg pki ca")
    files = _walk(folder)
    return [SavedFile(Place.AUTHORITY, file.relative_to(folder).as_posix(), _read(file)) for file in files]


def read_backup(file: Path) -> bytes:
    """The bytes of a backup. Raises BackupError."""
    try:
        with file.open("rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise BackupError(f"{file} is not a file", "give a file that bsfg backup has written")
            data = opened.read(BACKUP_BYTES_MAX + _HEAD_BYTES_MAX + 1)
    except OSError as error:
        raise BackupError(f"{file}: {error.strerror}", "correct the path") from error
    if len(data) > BACKUP_BYTES_MAX + _HEAD_BYTES_MAX:
        raise BackupError(f"{file} is larger than a backup can be", "give a file that bsfg backup has written")
    return data


def write_backup(file: Path, data: bytes, *, force: bool) -> None:
    """Write a backup, readable for its owner only where the file system has modes. Raises BackupError."""
    if os.path.lexists(file) and not force:
        raise BackupError(f"{file} exists", "name another file, or give --force")
    try:
        with _temporaries() as made:
            made.append((_write_temporary(file, data, 0o600), file))
            _rename(made)
    except OSError as error:
        raise BackupError(f"{file}: {error.strerror}; no backup was made", "correct the path, or free space") from error


def restore_files(
    targets: Sequence[RestoreTarget], roots: Mapping[Place, Path], rights: Mapping[Place, Rights], *, force: bool
) -> None:
    """Write all files to their places, or none. Raises BackupError."""
    if not force and (there := [str(target.path) for target in targets if os.path.lexists(target.path)]):
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise BackupError(f"{there[0]}{more} exist already; nothing was restored", "--force replaces them")
    for target in targets:
        _check_inside(target.path, roots[target.file.place])
        if target.path.is_dir():
            raise BackupError(f"{target.path} is a folder; nothing was restored", "remove it")
    made_folders: list[tuple[Path, Rights]] = []
    try:
        with _temporaries() as made:
            for target in targets:
                right = rights[target.file.place]
                made_folders += _make_folders(target.path.parent, right)
                made.append((_write_temporary(target.path, target.file.data, right.file_mode, right), target.path))
            _rename(made)
        # At the end, so that no owner of a folder can replace it by a link while root writes below it.
        for folder, right in made_folders:
            os.chown(folder, right.user, right.group)
    except OSError as error:
        for folder, _ in reversed(made_folders):
            with contextlib.suppress(OSError):  # it holds what was renamed before the error
                folder.rmdir()
        why = f"{error.filename or targets[0].path.parent}: {error.strerror}; nothing was restored"
        raise BackupError(why, "run this as root for /etc/bsfg; otherwise correct the path, or free space") from error


def _named(settings: NodeSettings, folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file and folder that node.toml names, with the setting that names it, except the state folder and what
    another program writes anew."""
    for section in fields(settings):
        value = getattr(settings, section.name)
        for record in value if isinstance(value, tuple) else (value,):
            label = f"{section.name} {getattr(record, 'name', '')}".rstrip()
            for setting in fields(record):
                path = getattr(record, setting.name)
                if isinstance(path, Path) and setting.name not in {"state_dir", "watch_file"}:
                    yield f"{label}: {setting.name}", path
    for source in settings.modbus:
        if source.device:
            yield f"modbus {source.name}: device", profile_file(folder, source.device)


def _walk(folder: Path) -> list[Path]:
    """The files below a folder, without those of rejected servers and temporary ones."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise _unreadable(Path(error.filename), error) from error

    walked = os.walk(folder, onerror=refuse)
    found = [Path(path) / name for path, _, names in walked for name in names if not name.startswith(".")]
    return sorted(file for file in found if file.parent.name != REJECTED)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from error
    return True


def _unreadable(path: Path, error: OSError) -> BackupError:
    hint = "run this as root, or as the node's user" if isinstance(error, PermissionError) else "correct the path"
    return BackupError(f"{path}: {error.strerror}; no backup was made", hint)


def _read(file: Path, *, is_link_allowed: bool = True) -> bytes:
    """The bytes of a regular file. In a folder that the node writes, a link could lead to a file that only root may
    read."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if is_link_allowed else os.O_NOFOLLOW)
    try:
        with os.fdopen(os.open(file, flags), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise BackupError(f"{file} is not a file; no backup was made", "remove it, or name a file")
            data = opened.read(BACKUP_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(file, error) from error
    if len(data) > BACKUP_BYTES_MAX:
        raise BackupError(f"{file} is larger than {BACKUP_BYTES_MAX} bytes", "correct the path")
    return data


def _check_inside(path: Path, root: Path) -> None:
    """Raise BackupError if a link at the destination leads out of its folder."""
    parent = path.parent
    if parent.is_relative_to(root) and not parent.resolve().is_relative_to(root.resolve()):
        raise BackupError(f"{parent} leads out of {root}; nothing was restored", "remove the link")


def _make_folders(folder: Path, right: Rights) -> list[tuple[Path, Rights]]:
    """Make a folder with those above it; returns the new ones, outermost first."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(mode=right.folder_mode)
        parent.chmod(right.folder_mode)  # whatever the umask
    return [(parent, right) for parent in reversed(missing)]


@contextlib.contextmanager
def _temporaries() -> Iterator[list[tuple[Path, Path]]]:
    """A list of temporary files and their places; what is still there at the end is removed."""
    made: list[tuple[Path, Path]] = []
    try:
        yield made
    finally:
        for temporary, _ in made:
            temporary.unlink(missing_ok=True)


def _write_temporary(file: Path, data: bytes, mode: int, right: Rights | None = None) -> Path:
    """Write a synced file beside `file`. A USB stick's file system has no modes, so none is set without `right`."""
    temporary = file.with_name(f".{secrets.token_hex(6)}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as opened:
        try:
            if right is not None:  # owner before mode: in the other order the old group could read it for a moment
                os.fchown(opened.fileno(), right.user, right.group)
                os.fchmod(opened.fileno(), mode)
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        except OSError:
            temporary.unlink()
            raise
    return temporary


def _rename(made: Sequence[tuple[Path, Path]]) -> None:
    for temporary, file in made:
        temporary.replace(file)
    for folder in {file.parent for _, file in made}:
        sync_folder(folder)
