"""The page: what is late, full, silent or broken, for one node and for all zones below it, in a process of its own.

It reads the store's file and asks the node over its socket; it has no key, and changes nothing. DESIGN.md has the
reasons. Import the modules: `bsfg fleet` needs `fleet` and `health_tail` without the libraries that `server` loads.
"""
