"""Values of shapes that `decode` leaves: any Variant (`variant`), by the data types of the server (`structures`), which
are asked for where they are met (`type_reader`, which speaks to asyncua)."""
