"""A node's settings and keys in one encrypted file: what `bsfg backup` makes and `bsfg restore` reads.

In it are node.toml and every file that it names (tag files, device profiles, certificates, keys, the trust of OPC UA
servers), our own OPC UA certificate, what the sources have learned of their devices, and on request an authority. The
store is not in it: its facts are at the zones above, and a store from a copy is a branch of the log
(docs/operate/integrity.md).

A file is written whole or not at all. A wrong passphrase, a truncated or altered file, and a name that leads out of its
folder are refused before anything is written. Links and devices cannot occur: an entry is a name and bytes, and nothing
is compressed.

`contents` says what is in a backup and where it belongs, and encrypts it (without IO); `files` reads and writes.
"""

from agent.backup.contents import (
    NONCE_BYTES,
    SALT_BYTES,
    Backup,
    BackupError,
    Place,
    RestoreTarget,
    SavedFile,
    derive,
    open_backup,
    seal_backup,
    targets_of,
    with_moved_paths,
)
from agent.backup.files import Rights, collect_authority, collect_node, read_backup, restore_files, write_backup
