"""The Spark side: attempts to metrics, archive, replay, ingest and report. Everything else runs without it."""
