"""Questions to a store: facts as rows or messages, the latest value of every tag, SQL, export to files, and statistics.

    scan/           which batches may hold what is asked for; their facts as columns and as messages; times and errors
    latest/         the latest value of every tag
    sql/            SELECT statements over virtual tables; needs the extra `sql` only when a session opens
    export/         SQLite, CSV, JSON lines and Parquet files
    statistics.py   counts per stream, from the heads of batches

Everything here is read-only and reads in pages, so it neither blocks the writer nor holds the write-ahead log.
"""
