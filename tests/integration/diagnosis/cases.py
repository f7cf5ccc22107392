"""Each broken set-up, by the id of its topic and subscription."""

from __future__ import annotations

from deliveries.models import DeadLetter
from tests.integration.diagnosis.standing import (
    EMAIL,
    HANGS,
    Case,
    about_to_expire,
    act,
    answered,
    dead_letters,
    every_fifth,
    expired,
    failing,
    function,
    move_to_a_good_endpoint,
    nacked,
    no_signing_key,
    pulled,
    set_up,
    settled,
)
from tests.ports import free_port
from tests.receiver import Answer

NOTHING_FOUND = "No fault was found, but not every step was tried: answer."
WELL = {"step": "", "summary": NOTHING_FOUND, "sentence": "Nothing waits.", "levels": ("", "good"), "is_ready": settled}
ACKED = WELL | {"summary": "Nothing is wrong: each step was tried just now, and works."}
ACCOUNT = {"oidc_service_account_email": EMAIL}
CASES = {
    "refused": failing(
        lambda _: f"http://127.0.0.1:{free_port()}/", "connect_failed", "connection", "Start the endpoint"
    ),
    "no-address": failing(lambda _: "http://nowhere.invalid/", "dns_failed", "name", "Correct the name"),
    "metadata": failing(lambda _: "http://169.254.169.254/", "address_denied", "guard", "Push to a public address"),
    "bad-port": failing(lambda _: "https://127.0.0.1:22/", "invalid_endpoint", "url", "port 22"),
    "expired-certificate": failing(
        lambda stand: stand.tls(stand.authority.server_context("localhost", expired=True)),
        *("tls_failed", "certificate", "has expired."),
    ),
    "other-host": failing(
        lambda stand: stand.tls(stand.authority.server_context("other.test")),
        *("tls_failed", "certificate", "another host name"),
    ),
    "self-signed": failing(lambda stand: stand.self_signed(), "tls_failed", "certificate", "is self-signed."),
    "no-tls": failing(
        lambda stand: stand.answering(204).replace("http:", "https:"),
        *("tls_failed", "certificate", "TLS handshake fails"),
    ),
    "hangs": failing(
        lambda stand: stand.answering(HANGS),
        *("deadline_exceeded", "answer", "Answer before the ack deadline"),
        change={"ack_deadline_seconds": 1},
    ),
    "slow-body": failing(
        lambda stand: stand.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", hangs=True),
        *("body_timeout", "answer", "Answer with a small header and body"),
    ),
    "cut-off": failing(
        lambda stand: stand.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"),
        *("body_incomplete", "answer", "closes the connection within its answer"),
    ),
    "hangs-up": failing(lambda stand: stand.answering(Answer(hang_up=True)), "reset", "answer", "before it answers"),
    "garbage": failing(
        lambda stand: stand.raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "invalid_response", "answer", "speak HTTP/1.1"
    ),
    "huge-header": failing(
        lambda stand: stand.raw(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n"),
        *("header_too_large", "answer", "Answer with a small header and body"),
    ),
    "redirect": answered(301, "pushes do not follow redirects"),
    "s400": answered(400, "Answer 102, 200, 201, 202 or 204"),
    "s401": answered(401, f"and the email {EMAIL}", change=ACCOUNT),
    "s403": answered(403, "No token was sent"),
    "s404": answered(404, "Correct the path"),
    "s405": answered(405, "let it take POST"),
    "s413": answered(413, "bodies as large as the messages"),
    "s429": answered(429, "x-pushhub-rate"),
    "s500": answered(500, "the endpoint's own log"),
    "s503": answered(503, "the endpoint's own log"),
    "long-backoff": answered(503, "503", retryPolicy={"minimumBackoff": "600s", "maximumBackoff": "600s"}),
    "no-account": failing(
        lambda stand: stand.answering(204),
        *("token_denied", "token", "does not exist"),
        change={"oidc_service_account_email": "nobody@shop.iam.gserviceaccount.com"},
    ),
    "throws": failing(
        lambda stand: stand.answering(204),
        *("transform_failed", "transforms", "Correct the function"),
        change=function("function f(message) { throw 'no'; }"),
    ),
    "endless": failing(
        lambda stand: stand.answering(204),
        *("transform_failed", "transforms", "Correct the function"),
        change=function("function f(message) { while (true) {} }"),
    ),
    "poison": Case(
        set_up(script=500, count=2, enableMessageOrdering=True),
        *("ordering", "dead-letter it or skip it", "key wait for it: 1."),
        result="500",
        is_ready=lambda name: nacked(name, "500", times=3),
    ),
    "paused": Case(
        set_up(lambda stand, name: act(stand, name, "pause"), count=0), "subscription", "Resume it", "Paused by user:"
    ),
    # An ack tells nothing of the time since the resume if its request began before the pause.
    "resumed": Case(
        set_up(
            lambda stand, name: act(stand, name, "pause"),
            lambda stand, name: stand.publish(name, 1),
            lambda stand, name: act(stand, name, "resume"),
            count=0,
        ),
        **ACKED,
    ),
    "topic-deleted": Case(
        set_up(lambda stand, name: stand.api.delete(f"topics/{name}"), count=0),
        *("subscription", "another topic", "The topic was deleted"),
    ),
    "expiring": Case(set_up(about_to_expire, count=0), "subscription", "expiration policy", "is deleted at"),
    "filter": Case(
        set_up(filter="attributes:never"),
        "filter",
        "matches: 0 of the 1 newest",
        "Nothing waits.",
        levels=("",),
    ),
    "filtering-transform": Case(
        lambda stand, name: failing(
            lambda stand: stand.answering(500), "", "", "", change=function("function f(message) { return null; }")
        ).break_it(stand, name),
        **WELL,
    ),
    "slowed": Case(
        set_up(*[lambda stand, name: stand.publish(name, 1000)] * 9, script=every_fifth(500), count=1000),
        *("answer", "the endpoint's own log", "of the results are nacks"),
        is_ready=lambda name: nacked(name, "500"),
    ),
    "expired": Case(
        expired,
        *("flow", "Look at the dead letters, and at the retention", "1 expired, revoked or skipped"),
        is_ready=settled,
    ),
    "no-signing-key": Case(no_signing_key, **ACKED),
    "dead-lettered": Case(
        dead_letters,
        *("flow", "Dead letters that nobody has dealt with: 1.", "Dead letters that nobody has dealt with: 1."),
        is_ready=lambda name: DeadLetter.objects.filter(subscription__subscription_id=name).exists(),
    ),
    "no-dead-letter-topic": Case(
        lambda stand, name: dead_letters(stand, name, is_deleted=True),
        *("dead letters", "Set the subscription's dead letter topic again", "The dead letter topic was deleted"),
        result="500",
        is_ready=lambda name: nacked(name, "500", times=6),
    ),
    "own-limit": Case(
        set_up(script=HANGS, count=3, ackDeadlineSeconds=600, push={"attributes": {"x-pushhub-max-outstanding": "1"}}),
        *("flow", "Raise the limit", "own limit x-pushhub-max-outstanding. Outstanding messages: 1 of 3 undelivered."),
    ),
    "own-rate": Case(
        set_up(count=9, push={"attributes": {"x-pushhub-rate": "0.001", "x-pushhub-burst": "1"}}),
        *("flow", "Raise the limit", "own limit x-pushhub-rate. Outstanding messages: 0 of 8 undelivered."),
    ),
    "full-window": Case(
        set_up(script=HANGS, count=9, ackDeadlineSeconds=600), "flow", "the window grows", "The push window is full"
    ),
    "first-push": Case(
        set_up(script=HANGS, ackDeadlineSeconds=600),
        *("", NOTHING_FOUND, "No result of a push is known yet. Outstanding messages: 1 of 1 undelivered."),
        levels=("",),
    ),
    "nothing-published": Case(set_up(count=0), **WELL),
    "acknowledged": Case(set_up(count=3), **ACKED),
    "moved": Case(set_up(move_to_a_good_endpoint, script=500), **ACKED),
    "nobody-pulls": Case(pulled(count=2), "flow", "Start a subscriber", "Messages that wait to be pulled: 2."),
    # As a stream does whose client has nacked what it got.
    "asked-for": Case(
        pulled(count=2, pulls=2, is_given_back=True),
        *("", "Nothing is wrong", "Subscribers ask for messages. Messages that wait to be pulled: 2."),
        levels=("",),
    ),
    "pulled-and-held": Case(
        pulled(count=2, pulls=2),
        *("", "Nothing is wrong", "Subscribers hold messages that they have yet to acknowledge: 2 of 2"),
        levels=("",),
    ),
}
