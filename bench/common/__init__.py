"""Shared by all benchmarks: data sets, measurements of processes and disks, and the test bed with its worker
processes."""
