"""`bsfg store`: verify, export, migrate and statistics of a store's file, one module for each verb."""
