"""Benchmarks of the product on this machine, each with a limit that is measured in the same run.

The limit is a bare loop with the same input and output, run in turns with the product, on the same disk and through the
same broker. Its ratio to the product can be compared between machines; a bare rate cannot. The product's side leaves
nothing out: every process is a real one, every store has synchronous=FULL, every batch is verified. `bsfg bench NAME
--json` prints one JSON object; DESIGN.md describes the parts and their price.
"""
