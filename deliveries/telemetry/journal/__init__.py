"""The journal: every attempt, settlement and publish, appended crash-safely and sealed into Parquet segments."""
