"""Benchmarks: how fast the product is on this machine, each beside the limit it is compared with, measured in the same
run.

A figure without its limit says more of the machine than of the program, so every benchmark here runs a bare loop that
does the same input and output with nothing around it, in turns with the product, on the same disk and through the same
broker. Nothing is left out of the product's side: every process is a real one, every store is synchronous=FULL, every
batch is verified. `bsfg bench NAME --json` prints one JSON object; DESIGN.md says what each part does and what it
costs.
"""
