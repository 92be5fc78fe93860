"""Plausible one-line bugs of the product, each with the tests that must fail: docs/developers/tests.md, "What the
mutants are"."""
