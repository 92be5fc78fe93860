"""Commands before a node runs: `init` writes its file, `check` looks for problems, `setup` does all of it; `unit` has
what systemd's unit lets a node do."""
