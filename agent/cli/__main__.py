"""`python -m agent.cli` is `bsfg`, for processes that must run under a chosen interpreter."""

from agent.cli import main

main()
