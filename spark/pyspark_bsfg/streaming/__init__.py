"""The data source as a stream: `spark.readStream.format("bsfg")`, and the confirmations that follow a sink."""
