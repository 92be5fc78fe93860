"""Tag lists of other products, translated into rows of our tag files."""
