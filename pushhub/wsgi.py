"""The WSGI application that the web server (pushhub/runtime/webserver.py) runs."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
application = get_wsgi_application()
