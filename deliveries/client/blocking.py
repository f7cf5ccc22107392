"""The blocking push client, for a stock Celery worker: requests sends each POST by way of the asyncio client.

By itself, requests would resolve a name again after the address guard has judged its addresses, limit the time of each
read in place of the attempt's, follow redirects, and take a 102 for the final status. So the transport adapter of its
session is the asyncio client, in an event loop that ends with the push. Each push has its own connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import requests
from requests.adapters import BaseAdapter

from deliveries.client.client import Endpoint, Headers, PushClient, header_lines, parse_url
from deliveries.client.options import ClientOptions
from deliveries.client.request import PushResult
from deliveries.client.tls import client_context


class BlockingClient:
    """Has the interface of PushClient, but `post` returns after it has called `on_done`. Any thread may use it."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._context = client_context(ca_file=options.ca_file, verify=options.tls_verify)

    def prepare(self, url: str, *, headers: Headers = ()) -> Endpoint:
        """Return an endpoint whose requests all carry these headers. Raises as PushClient does."""
        origin, head = parse_url(url, self._options)
        return Endpoint(origin, head=head, headers=header_lines(headers), pool=None)

    def post(self, endpoint: Endpoint, body: bytes, *, on_done: Callable[[PushResult], None], **options: Any) -> None:
        """Send one POST and report its result; `options` are those of PushClient's."""
        adapter = _Adapter(lambda body: self._push(endpoint, body, **options))
        with requests.Session() as session:
            session.trust_env = False
            session.mount("https://", adapter)
            session.post("https://endpoint/", data=body, allow_redirects=False)  # the adapter knows where to
        on_done(adapter.result)

    async def _push(self, endpoint: Endpoint, body: bytes, **options: Any) -> PushResult:
        loop = asyncio.get_running_loop()
        client = PushClient(loop, options=self._options, context=self._context)
        result: asyncio.Future[PushResult] = loop.create_future()
        try:
            client.post(endpoint, body, on_done=result.set_result, **options)
            return await result
        finally:
            await client.close()


class _Adapter(BaseAdapter):
    """Sends the body of a session's request by a push, and keeps its result."""

    result: PushResult

    def __init__(self, push: Callable[[bytes], Coroutine[Any, Any, PushResult]]) -> None:
        super().__init__()
        self._push = push

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        body = request.body if isinstance(request.body, bytes) else b""  # requests has None for no bytes
        self.result = asyncio.run(self._push(body))
        response = requests.Response()
        response.status_code = self.result.status
        return response

    def close(self) -> None:
        """Nothing is left open after a push."""
