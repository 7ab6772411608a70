"""Problem files: rows of JSON lines or Parquet, read and checked before the first step."""
