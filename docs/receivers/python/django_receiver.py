"""Receive authenticated pushes with Django, in one file.

PUSH_...=... python django_receiver.py runserver 8080
"""

from __future__ import annotations

import base64
import json
import sys

from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from verification import InvalidToken, WrongServiceAccount, verify_token


@csrf_exempt  # the token proves the sender, not a cookie
@require_POST
def receive_push(request: HttpRequest) -> HttpResponse:
    """Handle a message; status 204 acknowledges it, every other one makes PushHub push it again."""
    try:
        verify_token(request.headers.get("Authorization", ""))
    except InvalidToken as error:
        return HttpResponse(f"{error}\n", status=401)
    except WrongServiceAccount as error:
        return HttpResponse(f"{error}\n", status=403)
    message = json.loads(request.body)["message"]
    text = base64.b64decode(message.get("data", "")).decode()
    print(f"received {message['messageId']}: {text}", flush=True)
    return HttpResponse(status=204)


urlpatterns = [path("push", receive_push)]

if __name__ == "__main__":
    settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="nothing is signed with it")  # noqa: S106
    execute_from_command_line(sys.argv)
