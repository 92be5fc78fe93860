"""Plausible one-line bugs of the product, each with the tests that must fail: docs/reference/tests.md, "What the
mutants are"."""
