"""The console's pages of the data plane. Importing the package registers them."""

from __future__ import annotations

from deliveries.admin import (
    deadletters,
    endpoints,
    messages,
    metrics,
    overview,
    pipeline,
    publishjobs,
    subscription_list,
    topic_pages,
)

__all__ = [
    "deadletters",
    "endpoints",
    "messages",
    "metrics",
    "overview",
    "pipeline",
    "publishjobs",
    "subscription_list",
    "topic_pages",
]
