"""Metrics under Cloud Monitoring's names: gauges that are taken each minute, and reading what was counted."""
