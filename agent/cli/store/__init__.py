"""`bsfg store`: commands on one store file. They verify, repair, export and migrate it, and print its statistics."""
