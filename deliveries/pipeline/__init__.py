"""The data pipeline: metrics, archive, replay, ingest and report. Everything else runs without it."""
