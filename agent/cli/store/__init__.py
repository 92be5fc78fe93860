"""`bsfg store`: commands on one store file, a module each. They verify, export and migrate it, and print its statistics
and its lives."""
