"""The console's pages of the data plane. Importing the package registers them."""

from __future__ import annotations

from deliveries.admin import deadletters, messages, metrics, overview, publishjobs

__all__ = ["deadletters", "messages", "metrics", "overview", "publishjobs"]
