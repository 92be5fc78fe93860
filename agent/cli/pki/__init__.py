"""`bsfg pki`: the certificates of a site that has no authority of its own, and its keys for signing facts.

`ca` once. For each zone and broker: `request` on its own machine, `sign` at the authority, `import` on its machine;
`sign` and `import` again before a certificate expires, `revoke` when a key is lost, `crl` before the revocation list
expires, `show` and `list` to display them. `import` also takes certificates of a site's own PKI. `signer` has the keys
that sign facts. The folder (`--pki`) is a plain folder of PEM files. With `--json` each command prints one object a
line; times are ISO 8601 with their zone.
"""
