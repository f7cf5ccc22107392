"""The WSGI application that the web server (pushhub/runtime/webserver.py) runs."""

from __future__ import annotations

import os
from importlib import import_module

from django.conf import settings
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
application = get_wsgi_application()
# Otherwise the first request would wait until all views and pages are imported.
import_module(settings.ROOT_URLCONF)
