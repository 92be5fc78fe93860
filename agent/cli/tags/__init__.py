"""The commands for tag files: begin one, check it, compare it with the one in force, translate another product's list."""
