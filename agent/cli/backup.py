"""`bsfg backup` and `bsfg restore`: a node's settings and keys, and an authority, as one encrypted file."""

from __future__ import annotations

import os
import pwd
import secrets
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

import click
from click.core import ParameterSource

from agent import __version__, backup
from agent.backup import Backup, BackupError, Place, RestoreTarget, Rights, SavedFile
from agent.cli import FILE, FOLDER, INPUT, config_option, json_option, print_json
from agent.cli.pki.options import get_passphrase
from agent.cli.prepare import unit
from agent.cli.prepare.check import check, runs
from agent.config import load
from agent.replication.pki import PASSPHRASE_BYTES_MIN
from agent.settings.node import DEFAULT_STATE_DIR

_QUESTION = "Passphrase of the backup"
_passphrase_option = click.option(
    "--passphrase-file",
    type=INPUT,
    help="The passphrase, in the first line of a file; by default it is asked for.",
)
_authority_option = click.option("--authority", type=FOLDER, help="The folder of an authority, which is included.")


@click.command("backup")
@click.argument("file", type=FILE)
@config_option
@_authority_option
@_passphrase_option
@click.option("--list", "is_list", is_flag=True, help="Print what is in FILE.")
@click.option("--force", is_flag=True, help="Replace an existing FILE.")
@json_option
@click.pass_context
def backup_command(
    context: click.Context,
    file: Path,
    config_file: Path,
    authority: Path | None,
    passphrase_file: Path | None,
    is_list: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Save settings, tag files, certificates, keys and the trust of OPC UA servers in FILE, encrypted.

    The store is not saved: its facts are at the zones above, and a store from a copy is a branch of the log. With
    --authority and without a node.toml, only the authority is saved.
    """
    if is_list:
        found = _opened(file, passphrase_file)
    else:
        is_default = context.get_parameter_source("config_file") is ParameterSource.DEFAULT
        node = None if authority is not None and is_default and not config_file.exists() else config_file
        if os.path.lexists(file) and not force:  # before the passphrase is typed
            raise BackupError(f"{file} exists", "name another file, or give --force")
        found = _collected(node, authority)
        passphrase = get_passphrase(passphrase_file, _QUESTION, is_new=True)
        if len(passphrase) < PASSPHRASE_BYTES_MIN:
            raise BackupError(f"the passphrase is shorter than {PASSPHRASE_BYTES_MIN} characters", "use several words")
        salt, nonce = secrets.token_bytes(backup.SALT_BYTES), secrets.token_bytes(backup.NONCE_BYTES)
        data = backup.seal_backup(found, backup.derive(passphrase), salt, nonce)
        backup.write_backup(file, data, force=force)
    _print(file, found, is_list=is_list, as_json=as_json)


@click.command()
@click.argument("file", type=INPUT)
@click.option("--config", "config_file", type=FILE, help="Where node.toml goes.  [default: where it was]")
@click.option(
    "--authority", "authority", type=FOLDER, help="Where the authority goes; without this it is not restored."
)
@_passphrase_option
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.pass_context
def restore(
    context: click.Context,
    file: Path,
    config_file: Path | None,
    authority: Path | None,
    passphrase_file: Path | None,
    force: bool,
) -> None:
    """Write the files of a backup to their places, all or none, and check the node as `bsfg check` does.

    The node begins a new store. Restore on one machine only: the zones above refuse one of two nodes of a zone.
    """
    found, paths = _opened(file, passphrase_file), 0
    if found.config_file:
        config_file = (config_file or Path(found.config_file)).absolute()
    elif config_file is not None:
        raise BackupError(f"{file} holds no node", "give --authority only")
    if authority is not None and not found.authority:
        raise BackupError(f"{file} holds no authority", "omit --authority")
    folders: dict[Place, Path] = {} if authority is None else {Place.AUTHORITY: authority.absolute()}
    rights: dict[Place, Rights] = {Place.AUTHORITY: Rights()}
    if config_file is not None:
        found, paths = backup.with_moved_paths(found, str(config_file.parent))
        state_dir = _state_dir(found, config_file)
        folders |= {Place.CONFIG: config_file.parent, Place.STATE: state_dir}
        rights |= _rights(config_file)
    targets = backup.targets_of(found, config_file or Path(), folders)
    if not targets:
        raise BackupError(f"{file} holds an authority only", "give --authority FOLDER to restore it there")
    backup.restore_files(targets, folders, rights, force=force)
    _print_restored(found, targets, folders)
    if paths and config_file is not None:
        click.echo(
            f"  {paths} path{'s' * (paths > 1)} in node.toml named the folder where it was, and now {config_file.parent}"
        )
    if config_file is not None:
        context.invoke(check, config_file=config_file, connect=False, as_json=False)


def _collected(config_file: Path | None, authority: Path | None) -> Backup:
    """The content of a new backup. Raises ConfigError or BackupError."""
    zone, files, left_out = "", list[SavedFile](), list[str]()
    if config_file is not None:
        settings = load(config_file)
        zone = settings.node.zone
        files, left_out = backup.collect_node(settings, config_file.absolute())
    if authority is not None:
        files += backup.collect_authority(authority)
    return Backup(
        version=__version__,
        made_unix_ms=time.time_ns() // 1_000_000,
        zone=zone,
        config_file="" if config_file is None else str(config_file.absolute()),
        authority="" if authority is None else str(authority.absolute()),
        left_out=tuple(left_out),
        files=tuple(files),
    )


def _opened(file: Path, passphrase_file: Path | None) -> Backup:
    """The backup in a file. Raises BackupError that names it."""
    data = backup.read_backup(file)
    passphrase = get_passphrase(passphrase_file, _QUESTION, is_new=False)
    try:
        return backup.open_backup(data, backup.derive(passphrase))
    except BackupError as error:
        raise BackupError(f"{file} {error.why}", error.hint) from error


def _state_dir(found: Backup, config_file: Path) -> Path:
    """The state folder that the saved node.toml names. Raises BackupError if it is not that of the unit, or in use."""
    former = Path(found.config_file).name
    (text,) = (file.data for file in found.files if file.place is Place.CONFIG and file.name == former)
    named: str = tomllib.loads(text.decode("utf-8-sig"))["node"].get("state_dir", DEFAULT_STATE_DIR)
    state_dir = config_file.parent / named
    if unit.is_of_unit(config_file) and state_dir != unit.state_dir_of(config_file):
        why = f"the node's state folder is {state_dir}, but bsfg@{config_file.stem} writes to {unit.state_dir_of(config_file)}"
        raise BackupError(f"{why}; nothing was restored", f"give --config {unit.CONFIG_FOLDER / state_dir.name}.toml")
    if runs(state_dir / "facts.db"):
        raise BackupError(
            f"a node runs in {state_dir}; nothing was restored", f"systemctl stop bsfg@{config_file.stem}"
        )
    return state_dir


def _rights(config_file: Path) -> Mapping[Place, Rights]:
    """In /etc/bsfg the node's group may read the settings and reach the socket; the state belongs to the node's user.
    Elsewhere the files belong to who restores them. Raises BackupError without such a user."""
    if not unit.is_of_unit(config_file) or os.geteuid() != 0:
        return {Place.CONFIG: Rights(), Place.STATE: Rights()}
    try:
        user = pwd.getpwnam(unit.USER)
    except KeyError as error:
        raise BackupError(
            f"this machine has no user {unit.USER}; nothing was restored", "install bsfg first"
        ) from error
    return {
        Place.CONFIG: Rights(0o640, 0o750, 0, user.pw_gid),
        Place.STATE: Rights(0o600, 0o750, user.pw_uid, user.pw_gid),
    }


def _print(file: Path, found: Backup, *, is_list: bool, as_json: bool) -> None:
    """What is in a backup."""
    if as_json:
        names = ("version", "made_unix_ms", "zone", "config_file", "authority", "left_out")
        files = [{"place": file.place.value, "name": file.name, "bytes": len(file.data)} for file in found.files]
        print_json({"file": str(file), **{name: getattr(found, name) for name in names}, "files": files})
        return
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(found.made_unix_ms / 1000))
    what = " and ".join([f"zone {found.zone}"] * bool(found.zone) + ["an authority"] * bool(found.authority))
    click.echo(f"{file}: {what}, {len(found.files)} files, made {made} by bsfg {found.version}")
    for saved in found.files if is_list else ():
        click.echo(f"  {len(saved.data):>9,}  {saved.place.value}/{saved.name}")
    for text in found.left_out:
        click.echo(f"  left out: {text}")
    if not is_list:
        click.echo("  keep file and passphrase at different places; the store is not in it (docs/operate/integrity.md)")


def _print_restored(found: Backup, targets: list[RestoreTarget], folders: Mapping[Place, Path]) -> None:
    """What was written, and what is still missing."""
    for place, folder in folders.items():
        if count := sum(target.file.place is place for target in targets):
            click.echo(f"restored {count} file{'s' * (count > 1)} in {folder}")
    for text in found.left_out:
        click.echo(f"  not in the backup: {text}")
    if Place.AUTHORITY in folders:
        crl_file = folders[Place.AUTHORITY] / "ca.crl"
        click.echo(f"  next: if certificates were revoked since, copy a broker's zones.crl over {crl_file}:")
        click.echo("  a list made from the older one would lift those revocations")
    if found.authority and Place.AUTHORITY not in folders:
        click.echo("  the backup also holds an authority; --authority FOLDER restores it there")
