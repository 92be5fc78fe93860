"""`bsfg hardware`: the capacity of a gateway."""
