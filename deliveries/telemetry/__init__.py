"""What PushHub tells of its work: the journal, counters, metrics and their time series, logs, spans, readiness."""
