"""The data source as a stream: `spark.readStream.format("bsfg")`, and the confirmation of finished batches."""
