"""The program to compare with: a Celery task that POSTs with requests, on a stock prefork worker."""

from __future__ import annotations

import os

import requests
from celery import Celery

app = Celery("stock", broker=os.environ.get("BENCH_STOCK_BROKER", "memory://"))
app.conf.task_ignore_result = True


@app.task
def push(url: str, body: str, authorization: str) -> None:
    headers = {"Content-Type": "application/json", "Authorization": authorization}
    requests.post(url, data=body, headers=headers, timeout=10).raise_for_status()
