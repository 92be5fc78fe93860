"""`bsfg store`: commands on one store file, a module each. They verify, export and migrate it, print its statistics,
and begin a new epoch."""
