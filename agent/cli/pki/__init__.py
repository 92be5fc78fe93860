"""`bsfg pki`: the certificates of a site that has no authority of its own, and its keys for signing facts.

`ca` once. For each zone and broker: `request` where its key shall be, `sign` at the authority, `import` there again;
`renew` before they expire, `revoke` when one is lost, `crl` where the list expires, `show` and `list` to see what there
is. `import` also takes certificates of a site's own PKI. `signer` has the keys that sign facts. The folder (`--pki`) is
a plain folder of PEM files. With `--json` each command prints one object a line; times are ISO 8601 with their zone.
"""
