"""`bsfg store`: commands on one store file. They verify, export and migrate it, and print its statistics
and its lives."""
