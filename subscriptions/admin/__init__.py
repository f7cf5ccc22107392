"""The console's pages of the control plane. Importing the package registers them."""

from __future__ import annotations

from subscriptions.admin import audit, credentials, policies, resources, schemas, tree

__all__ = ["audit", "credentials", "policies", "resources", "schemas", "tree"]
