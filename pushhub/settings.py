"""All settings, read once from `PUSHHUB_*` environment variables; docs/settings.md explains each."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from pushhub import __version__
from pushhub.common import environment as env
from pushhub.common.databases import SQLITE, database_config, replica_config
from pushhub.common.datafolder import load_or_create_secret
from pushhub.common.redisurls import check_redis_url, is_cluster, with_password

VERSION = __version__
BASE_DIR = Path(__file__).resolve().parent.parent

#: The folder of SQLite, the embedded Redis, the first admin login and the development secret.
DATA_DIR = Path(env.text("DATA", ".pushhub")).absolute()

# Only PushHub's own user may read its files, whatever the umask was.
os.umask(0o077)

#: Only `pushhub emulator` sets this. Callers need no credentials, at any address. MEMORY keeps nothing after the end.
EMULATOR = env.choice("EMULATOR", ["OFF", "MEMORY", "FOLDER"])
#: The factor of backoffs and retry countdowns.
TIME_SCALE = env.fraction("TIME_SCALE", 1.0)
if TIME_SCALE != 1 and EMULATOR == "OFF":
    raise env.SettingError("PUSHHUB_TIME_SCALE is for the emulator: an endpoint that fails needs its pauses")

#: `make up` switches this on: the first use of a project creates it, and missing secrets are generated.
DEVELOPMENT = env.switch("DEVELOPMENT")


def _secret_key() -> str:
    """Return the configured secret, or the one that the first `make up` wrote into the data folder."""
    configured = env.secret("SECRET_KEY")
    if configured:
        return configured
    file = DATA_DIR / "secret-key"
    if not DEVELOPMENT and not file.exists():
        raise env.SettingError(
            "PUSHHUB_SECRET_KEY is not set: give 50 random characters or more, or a file by PUSHHUB_SECRET_KEY_FILE"
        )
    return load_or_create_secret(file)


def _embedded_redis_url() -> str:
    """Return the socket of the embedded Redis that `make up` starts in the data folder."""
    socket = DATA_DIR / "redis.sock"
    if len(os.fsencode(socket)) > 100:  # a UNIX socket's path has 107 bytes at most, and 103 on macOS
        digest = hashlib.sha256(os.fsencode(socket)).hexdigest()[:16]
        socket = Path(tempfile.gettempdir()) / f"pushhub-{digest}" / "redis.sock"
    return f"unix://{socket}"


def _redis_url() -> str:
    """Return the configured URL, or that of the embedded Redis."""
    if configured := env.secret("REDIS_URL"):
        with env.naming("REDIS_URL"):
            check_redis_url(configured)
        return with_password(configured, env.secret("REDIS_PASSWORD"))
    folder = Path(EMBEDDED_REDIS_URL.removeprefix("unix://")).parent
    if folder != DATA_DIR:
        env.check_own_folder(folder, like=DATA_DIR)
    return EMBEDDED_REDIS_URL


def _broker_url() -> str:
    """Return the URL of the Redis beside a Cluster; "" without a Cluster."""
    configured = env.secret("BROKER_URL")
    if not is_cluster(REDIS_URL):
        if configured:
            raise env.SettingError("PUSHHUB_BROKER_URL: it is for a Redis beside the Cluster of PUSHHUB_REDIS_URL")
        return ""
    if not configured or is_cluster(configured):
        raise env.SettingError(
            "PUSHHUB_BROKER_URL: give a single Redis, redis://host:port/0, for Celery beside the Cluster"
        )
    with env.naming("BROKER_URL"):
        check_redis_url(configured)
    return configured


SECRET_KEY = _secret_key()
#: The secret that encrypts signing keys at rest. By default it is the secret key.
KEY_ENCRYPTION_KEY = env.secret("KEY_ENCRYPTION_KEY") or SECRET_KEY
#: The former secret, which still decrypts keys until `manage.py signing_keys reencrypt` was run.
KEY_ENCRYPTION_KEY_PREVIOUS = env.secret("KEY_ENCRYPTION_KEY_PREVIOUS")
#: The age at which a signing key gets a successor. With 0 only `manage.py signing_keys rotate` creates one.
KEY_ROTATION_DAYS = env.number("KEY_ROTATION_DAYS", 30)
DEBUG = False  # Django's debug pages would show settings and data to every caller
HTTP_ADDRESS = env.listen_address("HTTP", "127.0.0.1:8000")
GRPC_ADDRESS = env.listen_address("GRPC", "127.0.0.1:8085")
#: A certificate chain and its key in PEM. With both, the gRPC port uses TLS.
GRPC_TLS_CERT = env.text("GRPC_TLS_CERT")
GRPC_TLS_KEY = env.text("GRPC_TLS_KEY")
#: Address of the REST server to which the gRPC port forwards.
GRPC_REST = env.listen_address("GRPC_REST", f"{env.url(HTTP_ADDRESS).partition('//')[2]}")
#: The number of calls that the gRPC server handles at once. Calls that wait for messages don't count.
GRPC_THREADS = env.number("GRPC_THREADS", 16, least=2)
#: The number of these calls that one caller may occupy.
GRPC_CALLER_CALLS = env.number("GRPC_CALLER_CALLS", max(GRPC_THREADS * 3 // 4, 1), least=1)
#: The number of streaming pulls that a gRPC process has open; 0 for no limit.
GRPC_STREAMS = env.number("GRPC_STREAMS", 5_000)
#: The time in which a connection must send the head and the body of a request, and for which it may stay idle.
HEAD_SECONDS = env.number("HEAD_SECONDS", 10, least=1)
BODY_SECONDS = env.number("BODY_SECONDS", 30, least=1)
IDLE_SECONDS = env.number("IDLE_SECONDS", 75, least=1)
FLOWER_ADDRESS = env.listen_address("FLOWER", "127.0.0.1:5555")
PUBLIC_URL = env.web_url("PUBLIC_URL", env.url(HTTP_ADDRESS))
#: Never "*" by default: DNS rebinding would let a web page call the API of a PushHub with an anonymous principal.
NAMED_HOSTS = [
    *dict.fromkeys(["127.0.0.1", "localhost", "[::1]", urlsplit(PUBLIC_URL).hostname or ""]),
    *env.words("ALLOWED_HOSTS", env.check_host, "host names without scheme and port,"),
]
#: Containers reach an emulator by names that aren't known here. The middleware OtherSites tells these from web sites.
ALLOWED_HOSTS = NAMED_HOSTS if EMULATOR == "OFF" else ["*"]
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]
SESSION_COOKIE_NAME = "pushhub_session"  # two services on one host share cookies, whatever their ports
CSRF_COOKIE_NAME = "pushhub_csrf"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PUBLIC_URL.startswith("https://")
#: Only for a proxy that always sets X-Forwarded-Proto and X-Forwarded-For itself.
BEHIND_PROXY = env.switch("BEHIND_PROXY")
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if BEHIND_PROXY else None
#: The connections that one client address may have to each port; 0 is no limit. Behind a proxy all share its address.
CLIENT_CONNECTIONS = env.number("CLIENT_CONNECTIONS", 0 if BEHIND_PROXY else 2000)

EMBEDDED_REDIS_URL = _embedded_redis_url()
REDIS_URL = _redis_url()
BROKER_URL = _broker_url()
#: The folder of the embedded Redis, and what servers save there when they stop.
REDIS_FOLDER = DATA_DIR / "redis"
REDIS_SAVES = "*.rdb"
REGION = env.region("REGION", "local")
#: The regions in which messages may be published: this deployment's own and those of its workers elsewhere.
REGIONS = [*dict.fromkeys([REGION, *env.regions("REGIONS")])]
#: After a region has had no workers for this long, workers of another region deliver its messages.
REGION_TAKEOVER_SECONDS = env.number("REGION_TAKEOVER_SECONDS", 60, least=15)
#: Whether each region has a Redis of its own (deliveries/store/regionholds.py).
REGION_REDIS = env.switch("REGION_REDIS")
#: The messages of one subscription and region that wait in Redis. All others wait in the database.
BACKLOG_LIMIT = env.number("BACKLOG_LIMIT", 4000, least=10)
#: The memory that the messages of all subscriptions may take in Redis.
REDIS_MB = env.number("REDIS_MB", 256, least=1)
#: Into how many cells the lanes are divided. All keys that a script touches are of one cell (backlog/records.py).
CELLS = env.number("CELLS", 64 if BROKER_URL else 1, least=2 if BROKER_URL else 1, most=1024)
ANONYMOUS = env.matching(
    "ANONYMOUS", r"(user|serviceAccount):[^@\s]+@[^@\s]+", "a user:NAME@HOST or a serviceAccount:NAME@HOST"
)
for _name, (_host, _port) in (("HTTP", HTTP_ADDRESS), ("GRPC", GRPC_ADDRESS)):
    if ANONYMOUS and EMULATOR == "OFF" and not env.is_loopback(_host):
        raise env.SettingError(
            f"PUSHHUB_ANONYMOUS lets callers in without a token, so PUSHHUB_{_name} must be a loopback address and not "
            f"{_host}: unset one of the two"
        )
if bool(GRPC_TLS_CERT) != bool(GRPC_TLS_KEY):
    raise env.SettingError("PUSHHUB_GRPC_TLS_CERT and PUSHHUB_GRPC_TLS_KEY go together: set both or none")
if ANONYMOUS and BEHIND_PROXY:
    raise env.SettingError(
        "PUSHHUB_ANONYMOUS lets callers in without a token, and PUSHHUB_BEHIND_PROXY brings them from everywhere: "
        "unset one of the two"
    )
ALLOW_HTTP = env.switch("ALLOW_HTTP")
ALLOW_PRIVATE = env.switch("ALLOW_PRIVATE")
#: Whether pushes have `deliveryAttempt` without a dead-letter policy too, as Metro's do.
DELIVERY_ATTEMPT_ALWAYS = env.switch("DELIVERY_ATTEMPT_ALWAYS")
ISSUER = env.text("ISSUER", PUBLIC_URL)
#: The URLs that a caller's self-signed token may have as its audience, besides Google's.
AUDIENCES = [PUBLIC_URL, *(url.rstrip("/") for url in env.words("AUDIENCES"))]

#: The messages that one push worker may have outstanding.
WORKER_OUTSTANDING = env.number("WORKER_OUTSTANDING", 40_000, least=1)
#: The memory that payloads of outstanding messages may take in one push worker.
WORKER_OUTSTANDING_MB = env.number("WORKER_OUTSTANDING_MB", 256, least=16)
#: How long a stopping push worker waits for responses before it returns the outstanding messages to the backlog.
DRAIN_SECONDS = env.number("DRAIN_SECONDS", 10)
#: Above this rate a worker reports only a sample of its successes to Flower.
EVENTS_PER_SECOND = env.number("EVENTS_PER_SECOND", 100, least=1)
#: CIDR blocks and ports to which pushes are allowed although the address guard denies them.
ALLOWED_NETWORKS = env.words("ALLOWED_NETWORKS", ip_network, "CIDR blocks, such as 10.1.0.0/16,")
ALLOWED_PORTS = [int(port) for port in env.words("ALLOWED_PORTS", env.port, "port numbers")]
#: A bundle of certificate authorities that are trusted besides the system's.
PUSH_CA_FILE = env.authorities("PUSH_CA_FILE")
#: Local addresses from which pushes go out in turn. Each allows about 28,000 connections to one receiver.
PUSH_SOURCE_ADDRESSES = env.words("PUSH_SOURCE_ADDRESSES", ip_address, "numeric addresses")
PUSH_USER_AGENT = env.matching("PUSH_USER_AGENT", r"[ -~]+", "printable ASCII", default="CloudPubSub-Google")

#: The folder of the journal and its sealed segments, which the data pipeline reads. Empty: no journal.
if JOURNAL := env.folder("JOURNAL", DATA_DIR / "segments"):
    env.require_package("pyarrow", extra="service", why="PUSHHUB_JOURNAL, unless it is off,")
#: Where sealed segments go and are read: `s3://bucket/folder` or `gs://bucket/folder`. Empty: they stay in the folder.
JOURNAL_BUCKET = env.store("JOURNAL_BUCKET", local=False)
#: With less free disk space than this the journal pauses and leaves the space to the database.
JOURNAL_FREE_MB = env.number("JOURNAL_FREE_MB", 256)
#: How long segments are kept, and how far back `pipeline backfill` reaches.
JOURNAL_DAYS = env.number("JOURNAL_DAYS", 7, least=1)

#: The archive's folder, and whether messages stay in the database until they are archived.
ARCHIVE = env.store("ARCHIVE", str(DATA_DIR / "archive"))
if ARCHIVING := env.switch("ARCHIVING"):
    env.require_package("pyarrow", extra="service", why="PUSHHUB_ARCHIVING")
#: Seconds between two runs of the archive that beat starts.
ARCHIVE_SECONDS = env.number("ARCHIVE_SECONDS", 300, least=10)
#: How long the archive keeps messages. 0: for ever.
ARCHIVE_DAYS = env.number("ARCHIVE_DAYS", 0)
#: Whether `make up` starts the rollup on Spark. Without it the embedded counter counts attempts into metrics.
SPARK = env.switch("SPARK", default=True)
#: Spark's master: the process of each pipeline command, or a cluster.
SPARK_MASTER = env.text("SPARK_MASTER", "local[*]")
#: The Java heap of a pipeline command.
SPARK_MEMORY = env.matching("SPARK_MEMORY", r"[0-9]+[kmgtKMGT]?", "a size, such as 512m or 2g", default="512m")
#: More settings of Spark, which override PushHub's: `spark.executor.memory=1g,spark.authenticate=true`.
SPARK_CONF = env.pairs("SPARK_CONF")
#: With it, a driver and its cluster prove to each other that they know it, and encrypt what they send.
if SPARK_SECRET := env.secret("SPARK_SECRET"):
    SPARK_CONF = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": SPARK_SECRET,
        "spark.network.crypto.enabled": "true",
        **SPARK_CONF,
    }

#: Whether processes keep the counters that `/metrics` exports.
METRICS = env.switch("METRICS", default=True)
#: The bearer token that `/metrics` demands. Without one, only loopback may read it.
METRICS_TOKEN = env.secret("METRICS_TOKEN")
#: The number of subscriptions and topics that `/metrics` names. It adds up all others as "other".
METRICS_RESOURCES = env.number("METRICS_RESOURCES", 1_000, least=1)

#: Whether projects have the quotas below. 0 lifts a quota. The values are those of Cloud Pub/Sub where it has one.
QUOTAS = env.switch("QUOTAS")
QUOTA_ADMINISTRATOR_PER_MINUTE = env.number("QUOTA_ADMINISTRATOR_PER_MINUTE", 6_000)
QUOTA_PUBLISH_REQUESTS_PER_MINUTE = env.number("QUOTA_PUBLISH_REQUESTS_PER_MINUTE", 60_000)
QUOTA_PUBLISHER_KB_PER_MINUTE = env.number("QUOTA_PUBLISHER_KB_PER_MINUTE", 12_000_000)
QUOTA_SUBSCRIBER_KB_PER_MINUTE = env.number("QUOTA_SUBSCRIBER_KB_PER_MINUTE", 24_000_000)
QUOTA_STREAMING_PULL_CONNECTIONS = env.number("QUOTA_STREAMING_PULL_CONNECTIONS", 10_000)
QUOTA_ORDERING_KEY_KB_PER_SECOND = env.number("QUOTA_ORDERING_KEY_KB_PER_SECOND", 1_000)

#: How long entries of the audit log are kept.
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
    *(["drf_spectacular_sidecar"] if find_spec("drf_spectacular_sidecar") else []),
    "subscriptions",
    "deliveries",
]
MIDDLEWARE = [
    "subscriptions.api.othersites.OtherSites",
    "subscriptions.api.middleware.MethodOverride",
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


#: Publishers get their message ids after the commit, which FULL makes durable.
SQLITE_SYNCHRONOUS = "OFF" if EMULATOR == "MEMORY" else "FULL"
_database_url = env.secret("DATABASE_URL") or f"sqlite:///{DATA_DIR / 'pushhub.sqlite3'}"
_password = env.secret("DATABASE_PASSWORD")
with env.naming("DATABASE_URL"):
    DATABASES = {"default": database_config(_database_url, password=_password, synchronous=SQLITE_SYNCHRONOUS)}
#: SQLite has one writer at a time, so a second web process would only wait, and less efficiently than a thread.
IS_SQLITE = DATABASES["default"]["ENGINE"] == SQLITE
if REGION_REDIS and IS_SQLITE:
    raise env.SettingError("PUSHHUB_REGION_REDIS=on: regions share a PostgreSQL, so set PUSHHUB_DATABASE_URL")
if not IS_SQLITE:
    env.require_package("psycopg", extra="postgres", why="the database of PUSHHUB_DATABASE_URL")
if _replica_url := env.secret("REPLICA_URL"):
    if IS_SQLITE:
        raise env.SettingError("PUSHHUB_REPLICA_URL: a replica is a standby of a PostgreSQL in PUSHHUB_DATABASE_URL")
    with env.naming("REPLICA_URL"):
        DATABASES["replica"] = replica_config(_replica_url, password=_password)
    DATABASE_ROUTERS = ["pushhub.common.replica.Router"]
    MIDDLEWARE.append("pushhub.replicapages.ReplicaPages")
WEB_WORKERS = env.number("WEB_WORKERS", 1 if IS_SQLITE else 2, least=1)
#: A request occupies a thread only after its body has arrived.
WEB_THREADS = env.number("WEB_THREADS", 4, least=1)
#: Sandbox processes that each process starts at most for the functions of message transforms, one for each project.
TRANSFORM_SANDBOXES = env.number("TRANSFORM_SANDBOXES", 8, least=1)
if EMULATOR == "MEMORY":
    # Creating the tables from the models takes a tenth of the time of all migrations.
    MIGRATION_MODULES = dict.fromkeys(("auth", "contenttypes", "sessions", "subscriptions", "deliveries"))
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}}
]

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
TIME_ZONE = "UTC"
FORMAT_MODULE_PATH = "pushhub.formats"
#: The guide that `make docs` builds; a wheel that is made after that has it.
GUIDE = BASE_DIR / "pushhub" / "guide"
STATIC_URL = "/static/"
#: Serve static files from the installed packages, so that no `collectstatic` is needed.
WHITENOISE_USE_FINDERS = True

REST_FRAMEWORK = {
    # The defaults of views. Those of the API have their own (subscriptions/api/base.py).
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
    "POSTPROCESSING_HOOKS": ["subscriptions.api.openapi.list_error_statuses"],
    # The documentation's scripts come from an installed package, never from another site.
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    # No validator: its badge is an image of another site, which would learn the address of the schema.
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "validatorUrl": None},
}

#: The largest request body, which is Pub/Sub's limit (docs/spec.md#bodies).
DATA_UPLOAD_MAX_MEMORY_SIZE = 10 * 1024 * 1024

if DEVELOPMENT:
    # The warning is no help in a development container, where root is often the only user.
    warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")

LOG_LEVEL = env.choice("LOG_LEVEL", ["INFO", "DEBUG", "WARNING", "ERROR"])
#: LINE is for people. JSON is for machines and includes events of attempts.
LOG_FORMAT = env.choice("LOG_FORMAT", ["LINE", "JSON"])
#: The attempts of each outcome that a push worker logs per second (0: none). Each event has the number it stands for.
LOG_ATTEMPTS_PER_SECOND = env.number("LOG_ATTEMPTS_PER_SECOND", 100)
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
        "json": {"()": "pushhub.common.logs.JsonFormatter"},
    },
    "filters": {
        "expected_responses": {"()": "pushhub.common.logs.ExpectedResponses"},
        "outages": {"()": "pushhub.common.logs.Outages"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT.lower(), "filters": ["outages"]}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        "django.request": {"filters": ["expected_responses"]},
        # Flower shows tasks, so the log needs no lines about each.
        "celery.beat": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        # An outage has a line of its own, and lasts for many new connections.
        "celery.worker.consumer": {"level": "WARNING"},
        # py4j logs every call between Python and Java.
        "py4j": {"level": "WARNING"},
        # Flower also asks workers that are still starting, and asks again later.
        "flower.inspector": {"level": "ERROR"},
    },
}
