"""`bsfg pki`: certificates made, renewed, revoked and shown on the command line, and how they are printed."""
