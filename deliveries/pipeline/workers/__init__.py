"""What Spark's Python processes do before anything else, in PushHub's own sessions."""
