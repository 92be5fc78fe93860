"""Tag files: read, checked whole, watched while the node runs, and compared with the map in force."""
