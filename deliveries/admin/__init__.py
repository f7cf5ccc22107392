"""The console's pages of the data plane. Importing the package registers them."""

from __future__ import annotations

from deliveries.admin import (  # noqa: F401 - each registers its pages
    deadletters,
    endpoints,
    messages,
    overview,
    pipeline,
    publishjobs,
    segments,
    subscription_list,
    topic_pages,
)
