"""All settings, read once from `PUSHHUB_*` environment variables; docs/settings.md explains each."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import dj_database_url

from pushhub import environment as env

BASE_DIR = Path(__file__).resolve().parent.parent

#: SQLite, the embedded Redis, the first admin login and the development secret live here.
DATA_DIR = Path(env.text("DATA", ".pushhub")).absolute()

# What PushHub writes is for its own user alone, whatever umask it was started with.
os.umask(0o077)

#: Set by `pushhub emulator` alone: callers need no credentials, at any address, and in `memory` nothing is kept.
EMULATOR = env.choice("EMULATOR", ["OFF", "MEMORY", "FOLDER"])
#: What backoffs and retry countdowns are multiplied by.
TIME_SCALE = env.fraction("TIME_SCALE", 1.0)
if TIME_SCALE != 1 and EMULATOR == "OFF":
    raise env.SettingError("PUSHHUB_TIME_SCALE is for the emulator: an endpoint that fails needs its pauses")

#: On under `make up`: projects come into being at first use, and secrets may be made on the spot.
DEVELOPMENT = env.switch("DEVELOPMENT")


def _secret_key() -> str:
    """The secret given, or the one that `make up` made on its first run and keeps in the data folder."""
    given = env.secret("SECRET_KEY")
    if given:
        return given
    kept = DATA_DIR / "secret-key"
    if not DEVELOPMENT and not kept.exists():
        raise env.SettingError(
            "PUSHHUB_SECRET_KEY is not set: give 50 random characters or more, or a file by PUSHHUB_SECRET_KEY_FILE"
        )
    from pushhub.runtime.development import kept_secret

    return kept_secret(kept)


def _redis_url() -> str:
    """The Redis given, or the socket of the embedded one that `make up` starts in the data folder."""
    given = env.secret("REDIS_URL")
    if given and not given.startswith(("redis://", "rediss://", "unix://")):
        raise env.SettingError("PUSHHUB_REDIS_URL: give redis://host:port/0, rediss:// for TLS, or unix:///path")
    if given:
        password = env.secret("REDIS_PASSWORD")
        return given.replace("://", f"://:{quote(password, safe='')}@", 1) if password else given
    socket = DATA_DIR / "redis.sock"
    if len(str(socket)) > 100:  # a UNIX socket's path holds 107 bytes at most
        socket = Path(tempfile.gettempdir()) / f"pushhub-{hashlib.sha256(str(socket).encode()).hexdigest()[:16]}.sock"
    return f"unix://{socket}"


SECRET_KEY = _secret_key()
#: What signing keys are encrypted with at rest; the secret key unless a separate one is given.
KEY_ENCRYPTION_KEY = env.secret("KEY_ENCRYPTION_KEY") or SECRET_KEY
#: Also tried, until `manage.py signing_keys reencrypt` has been run.
KEY_ENCRYPTION_KEY_PREVIOUS = env.secret("KEY_ENCRYPTION_KEY_PREVIOUS")
#: How old a signing key gets before the next is made; 0 leaves it to `manage.py signing_keys rotate`.
KEY_ROTATION_DAYS = env.number("KEY_ROTATION_DAYS", 30)
DEBUG = False  # its error pages show settings and data to whoever asks
HTTP_ADDRESS = env.listen_address("HTTP", "127.0.0.1:8000")
GRPC_ADDRESS = env.listen_address("GRPC", "127.0.0.1:8085")
#: A certificate chain and its key, in PEM: with both, the gRPC port speaks TLS.
GRPC_TLS_CERT = env.text("GRPC_TLS_CERT")
GRPC_TLS_KEY = env.text("GRPC_TLS_KEY")
#: Where REST is that the gRPC port leads to.
GRPC_REST = env.listen_address("GRPC_REST", f"{env.url(HTTP_ADDRESS).partition('//')[2]}")
#: How many calls the gRPC server works on at once; those that wait for messages don't count.
GRPC_THREADS = env.number("GRPC_THREADS", 16, least=2)
#: How many of them one caller may take.
GRPC_CALLER_CALLS = env.number("GRPC_CALLER_CALLS", max(GRPC_THREADS * 3 // 4, 1), least=1)
#: How long a connection may take to send the head of a request and its body, and how long it may stay idle.
HEAD_SECONDS = env.number("HEAD_SECONDS", 10, least=1)
BODY_SECONDS = env.number("BODY_SECONDS", 30, least=1)
IDLE_SECONDS = env.number("IDLE_SECONDS", 75, least=1)
FLOWER_ADDRESS = env.listen_address("FLOWER", "127.0.0.1:5555")
PUBLIC_URL = env.text("PUBLIC_URL", env.url(HTTP_ADDRESS)).rstrip("/")
#: Never "*" by itself: a web page whose name is made to point at 127.0.0.1 must not reach an anonymous caller's API.
ALLOWED_HOSTS = [
    *dict.fromkeys(["127.0.0.1", "localhost", "[::1]", urlsplit(PUBLIC_URL).hostname or ""]),
    *env.words("ALLOWED_HOSTS"),
]
if EMULATOR != "OFF":
    ALLOWED_HOSTS = ["*"]  # containers reach each other by names that nobody knows here
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]
SESSION_COOKIE_NAME = "pushhub_session"  # cookies don't tell the ports of one host apart, names do
CSRF_COOKIE_NAME = "pushhub_csrf"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PUBLIC_URL.startswith("https://")
#: On behind a proxy that sets this header itself and lets nobody else set it.
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if env.switch("BEHIND_PROXY") else None
#: How many connections one address may have to each port; 0 is no limit. A proxy's are everybody's.
CLIENT_CONNECTIONS = env.number("CLIENT_CONNECTIONS", 0 if SECURE_PROXY_SSL_HEADER else 2000)

REDIS_URL = _redis_url()
REGION = env.region("REGION", "local")
#: The regions that messages may be published in: this deployment's own, and those of its workers elsewhere.
REGIONS = [*dict.fromkeys([REGION, *env.regions("REGIONS")])]
#: For how long the workers of a region may be away before those of another one deliver its messages.
REGION_TAKEOVER_SECONDS = env.number("REGION_TAKEOVER_SECONDS", 60, least=15)
#: How many messages of one subscription and region wait in Redis; the rest wait in the database.
BACKLOG_LIMIT = env.number("BACKLOG_LIMIT", 4000, least=10)
ANONYMOUS = env.member("ANONYMOUS")
for _name, (_host, _port) in (("HTTP", HTTP_ADDRESS), ("GRPC", GRPC_ADDRESS)):
    if ANONYMOUS and EMULATOR == "OFF" and not env.is_loopback(_host):
        raise env.SettingError(
            f"PUSHHUB_ANONYMOUS lets callers in without a token, so PUSHHUB_{_name} must be a loopback address and not "
            f"{_host}: unset one of the two"
        )
if bool(GRPC_TLS_CERT) != bool(GRPC_TLS_KEY):
    raise env.SettingError("PUSHHUB_GRPC_TLS_CERT and PUSHHUB_GRPC_TLS_KEY go together: set both or none")
if ANONYMOUS and SECURE_PROXY_SSL_HEADER:
    raise env.SettingError(
        "PUSHHUB_ANONYMOUS lets callers in without a token, and PUSHHUB_BEHIND_PROXY brings them from everywhere: "
        "unset one of the two"
    )
ALLOW_HTTP = env.switch("ALLOW_HTTP")
ALLOW_PRIVATE = env.switch("ALLOW_PRIVATE")
#: Whether `deliveryAttempt` is sent without a dead-letter policy too, as Metro does.
DELIVERY_ATTEMPT_ALWAYS = env.switch("DELIVERY_ATTEMPT_ALWAYS")
ISSUER = env.text("ISSUER", PUBLIC_URL)
#: The URLs that a caller's self-signed token may name as its audience, beside Google's.
AUDIENCES = [PUBLIC_URL, *(url.rstrip("/") for url in env.words("AUDIENCES"))]

#: How many messages one push worker may have outstanding.
WORKER_OUTSTANDING = env.number("WORKER_OUTSTANDING", 40_000, least=1)
#: Memory that the payloads of outstanding messages may take in one push worker.
WORKER_OUTSTANDING_MB = env.number("WORKER_OUTSTANDING_MB", 256, least=16)
#: How long a push worker that is asked to stop waits for what is out, before it hands the rest back.
DRAIN_SECONDS = env.number("DRAIN_SECONDS", 10)
#: Above this rate a worker tells Flower only of a sample of its successes.
EVENTS_PER_SECOND = env.number("EVENTS_PER_SECOND", 100, least=1)
#: CIDR blocks and ports that may be pushed to although the address guard denies them.
ALLOWED_NETWORKS = env.words("ALLOWED_NETWORKS")
ALLOWED_PORTS = env.ports("ALLOWED_PORTS")
#: A bundle of certificate authorities trusted beside the system's.
PUSH_CA_FILE = env.text("PUSH_CA_FILE")
#: Local addresses to push from in turn: from each, some 28,000 connections lead to one receiver.
PUSH_SOURCE_ADDRESSES = env.words("PUSH_SOURCE_ADDRESSES")
PUSH_USER_AGENT = env.text("PUSH_USER_AGENT", "CloudPubSub-Google")

#: The folder of the journal and its sealed segments, which the data pipeline reads; empty where journals are off.
JOURNAL = env.folder("JOURNAL", DATA_DIR / "segments")
#: Below so much free disk the journal stands still: the room is for the database.
JOURNAL_FREE_MB = env.number("JOURNAL_FREE_MB", 256)
#: How long segments are kept, so how far back `pipeline backfill` reaches.
JOURNAL_DAYS = env.number("JOURNAL_DAYS", 7, least=1)

#: The archive's folder, and whether messages stay in the database until they are archived.
ARCHIVE = env.text("ARCHIVE", str(DATA_DIR / "archive"))
ARCHIVING = env.switch("ARCHIVING")
#: Seconds between two runs of the archive that beat starts.
ARCHIVE_SECONDS = env.number("ARCHIVE_SECONDS", 300, least=10)
#: Whether `make up` starts the rollup on Spark. Without it the embedded counter counts attempts into metrics.
SPARK = env.switch("SPARK", default=True)
#: Where Spark runs: in the process of each pipeline command, or a cluster.
SPARK_MASTER = env.text("SPARK_MASTER", "local[*]")
#: The heap of a pipeline command.
SPARK_MEMORY = env.text("SPARK_MEMORY", "512m")
#: More settings of Spark, which win over ours: `spark.executor.memory=1g,spark.authenticate=true`.
SPARK_CONF = dict(pair.partition("=")[::2] for pair in env.words("SPARK_CONF"))
#: With it, a driver and its cluster prove to each other that they know it.
if SPARK_SECRET := env.secret("SPARK_SECRET"):
    SPARK_CONF = {"spark.authenticate": "true", "spark.authenticate.secret": SPARK_SECRET} | SPARK_CONF

#: Whether processes count what `/metrics` exports.
METRICS = env.switch("METRICS", default=True)
#: What a caller of `/metrics` must show as its bearer token; without one only loopback may read it.
METRICS_TOKEN = env.secret("METRICS_TOKEN")
#: `/metrics` names this many subscriptions and topics; what is left is added up as "other".
METRICS_RESOURCES = env.number("METRICS_RESOURCES", 1_000, least=1)

#: Whether projects have the quotas below; 0 lifts one of them. The values are those of Cloud Pub/Sub where it has them.
QUOTAS = env.switch("QUOTAS")
QUOTA_ADMINISTRATOR_PER_MINUTE = env.number("QUOTA_ADMINISTRATOR_PER_MINUTE", 6_000)
QUOTA_PUBLISH_REQUESTS_PER_MINUTE = env.number("QUOTA_PUBLISH_REQUESTS_PER_MINUTE", 60_000)
QUOTA_PUBLISHER_KB_PER_MINUTE = env.number("QUOTA_PUBLISHER_KB_PER_MINUTE", 12_000_000)
QUOTA_SUBSCRIBER_KB_PER_MINUTE = env.number("QUOTA_SUBSCRIBER_KB_PER_MINUTE", 24_000_000)
QUOTA_ORDERING_KEY_KB_PER_SECOND = env.number("QUOTA_ORDERING_KEY_KB_PER_SECOND", 1_000)

#: How long the audit log is kept.
AUDIT_DAYS = env.number("AUDIT_DAYS", 400, least=1)

INSTALLED_APPS = [
    "pushhub.apps.ConsoleConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "subscriptions",
    "deliveries",
]
MIDDLEWARE = [
    "subscriptions.api.middleware.QueryCredentials",
    "django.middleware.security.SecurityMiddleware",
    "pushhub.contentpolicy.ContentSecurityPolicy",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "subscriptions.api.middleware.CompressedAnswers",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "subscriptions.api.middleware.AuditOrigin",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "pushhub.urls"
WSGI_APPLICATION = "pushhub.wsgi.application"
APPEND_SLASH = True
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "pushhub" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def _database() -> dict[str, Any]:
    given = env.secret("DATABASE_URL") or f"sqlite:///{DATA_DIR / 'pushhub.sqlite3'}"
    try:
        config: dict[str, Any] = dict(dj_database_url.parse(given, conn_max_age=600))
    except ValueError:
        raise env.SettingError(
            "PUSHHUB_DATABASE_URL: give postgres://user:password@host:5432/name or sqlite:////path"
        ) from None
    config["PASSWORD"] = config.get("PASSWORD") or env.secret("DATABASE_PASSWORD")
    if config["ENGINE"] == "django.db.backends.sqlite3":
        durability = "OFF" if EMULATOR == "MEMORY" else "FULL"
        config["OPTIONS"] = {
            # A publisher's ids are handed out after the commit only, and synchronous=FULL makes a commit durable.
            "init_command": f"PRAGMA journal_mode=WAL; PRAGMA synchronous={durability}; PRAGMA cache_size=-65536;",
            # A write transaction takes the write lock at once and waits for it, in place of failing half-way.
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
        }
    else:
        config["CONN_HEALTH_CHECKS"] = True
    return config


DATABASES = {"default": _database()}
#: SQLite has one writer at a time: a second process would only wait for it, and wait worse than a thread does.
IS_SQLITE = DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3"
WEB_WORKERS = env.number("WEB_WORKERS", 1 if IS_SQLITE else 2, least=1)
#: A thread is taken for a request once its body is there.
WEB_THREADS = env.number("WEB_THREADS", 4, least=1)
if EMULATOR == "MEMORY":
    # Tables are created as the models have them now, which takes a tenth of the time.
    MIGRATION_MODULES = dict.fromkeys(("auth", "contenttypes", "sessions", "subscriptions", "deliveries"))
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}}
]

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
TIME_ZONE = "UTC"
USE_TZ = True
FORMAT_MODULE_PATH = "pushhub.formats"
STATIC_URL = "/static/"
#: Static files are served from the installed packages, without a copy that somebody has to collect first.
WHITENOISE_USE_FINDERS = True

REST_FRAMEWORK = {
    # Of views that say nothing else; those of the API name their own (subscriptions/api/base.py).
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAdminUser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "PushHub",
    "DESCRIPTION": "A self-hosted push-delivery service that speaks the Google Cloud Pub/Sub v1 API.",
    "VERSION": "v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_AUTHENTICATION": [],
    # The browsable documentation's scripts come from an installed package, never from another site.
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    # No validator: it would be a picture of another site, whose address has the schema's.
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "validatorUrl": None},
}

#: A request body may hold this much; the wire limit of Pub/Sub (docs/spec.md#bodies).
DATA_UPLOAD_MAX_MEMORY_SIZE = 10 * 1024 * 1024

if DEVELOPMENT:
    # True, and no news on a machine whose only user is root, as in a container for development.
    warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")

LOG_LEVEL = env.choice("LOG_LEVEL", ["INFO", "DEBUG", "WARNING", "ERROR"])
#: LINE is for people; JSON is for machines, and has an event for attempts.
LOG_FORMAT = env.choice("LOG_FORMAT", ["LINE", "JSON"])
#: Attempts of each outcome that a push worker logs per second; each event says for how many it stands. 0: none.
LOG_ATTEMPTS_PER_SECOND = env.number("LOG_ATTEMPTS_PER_SECOND", 100)
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
        "json": {"()": "pushhub.common.logs.JsonFormatter"},
    },
    "filters": {"client_errors": {"()": "pushhub.common.logs.ClientErrors"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT.lower()}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        "django.request": {"filters": ["client_errors"]},
        # One line for each task sent, received and done is what Flower is for.
        "celery.beat": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        # It tells of each call between Python and Java.
        "py4j": {"level": "WARNING"},
        # Flower asks workers that are still starting, and asks again when somebody looks.
        "flower.inspector": {"level": "ERROR"},
    },
}
