"""Jobs over the facts of a store: each module is a function on DataFrames, and a program that spark-submit starts by
its path."""
