"""Commands to prepare a node: `init` writes node.toml, `check` finds problems, `setup` runs all steps. `unit` has the
permissions that the systemd unit grants."""
