"""The emulator's own address: `POST /emulator/reset` deletes all resources of Pub/Sub, and creates the initial ones."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from pushhub.emulator.resources import StartResources, reset_resources

_start = StartResources()


def use(resources: StartResources) -> None:
    global _start
    _start = resources


@csrf_exempt
@require_POST
def reset(request: HttpRequest) -> HttpResponse:
    """Delete every resource and message, then create the initial resources again."""
    reset_resources(_start)
    return HttpResponse(status=204)
