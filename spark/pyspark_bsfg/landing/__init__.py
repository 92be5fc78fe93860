"""The output of the land job: files of facts, and tables that contain each batch of a stream once."""
