"""`bsfg pki`: the certificates of a site that has no authority of its own, and its keys for signing facts.

`ca` once. For each zone and broker: `request` where its key shall be, `sign` at the authority, `import` there again;
`renew` before they expire, `revoke` when one is lost, `crl` where the list expires, `show` and `list` to see what there
is. `import` also takes certificates of a site's own PKI. `signer` has the keys that sign facts. The folder (`--pki`) is
a plain folder of PEM files. With `--json` each command prints one object a line; times are ISO 8601 with their zone.
"""

from __future__ import annotations

import click

from agent.cli import LazyGroup

_VERBS = {
    "ca": "agent.cli.pki.authority:ca",
    "request": "agent.cli.pki.requests:request",
    "sign": "agent.cli.pki.requests:sign",
    "import": "agent.cli.pki.requests:import_command",
    "issue": "agent.cli.pki.authority:issue",
    "renew": "agent.cli.pki.authority:renew",
    "revoke": "agent.cli.pki.authority:revoke",
    "crl": "agent.cli.pki.authority:crl",
    "list": "agent.cli.pki.authority:list_command",
    "show": "agent.cli.pki.show:show",
    "signer": "agent.cli.pki.signer:signer",
}


@click.group(cls=LazyGroup, lazy=_VERBS)
def pki() -> None:
    """Create and show the certificates of zones and brokers, and the keys that sign facts."""
