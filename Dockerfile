# The image of a worker; every other command of `dispatcher` runs in it as well.
#
#   docker build -t notification-dispatcher .
#   docker run --rm notification-dispatcher limits check
#
# There is no server in it on purpose: a container whose DISPATCHER_REDIS_URL was forgotten is refused (exit 78),
# instead of counting limits on a server of its own that no other container sees. Nothing is written, so the root file
# system may be read-only.

# The Python that the tests run on. Both stages take the same, so that what is compiled for one fits the other.
ARG PYTHON=python:3.11.14-slim-trixie

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements.txt deploy/requirements-image.txt ./
# What runs goes into an environment of its own, without pip; what builds stays behind in this stage.
RUN python -m venv --without-pip /opt/dispatcher \
 && pip --python /opt/dispatcher/bin/python install --require-hashes -r requirements.txt \
 && pip install --require-hashes -r requirements-image.txt
COPY pyproject.toml README.md LICENSE ./
COPY config/ config/
COPY lua/ lua/
COPY dispatcher/ dispatcher/
RUN python -m hatchling build --target wheel --directory dist \
 && pip --python /opt/dispatcher/bin/python install --no-index --no-deps dist/*.whl

FROM ${PYTHON}
LABEL org.opencontainers.image.title="notification-dispatcher" \
      org.opencontainers.image.description="Sends notifications from a Redis queue to Slack, within shared limits" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="MIT"
# A number, since Kubernetes' runAsNonRoot does not look names up.
RUN groupadd --gid 10001 dispatcher \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin dispatcher \
 && install --directory --owner 10001 --group 10001 --mode 700 /var/lib/dispatcher
COPY --from=build /opt/dispatcher /opt/dispatcher
ENV PATH=/opt/dispatcher/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DISPATCHER_LOG_FORMAT=json
USER 10001:10001
# config/limits.yaml is looked for here; without one the limits are those that come with the package.
WORKDIR /etc/dispatcher
# The first SIGTERM finishes the posts in flight: allow more than DISPATCHER_SLACK_TIMEOUT + 5 s until SIGKILL.
STOPSIGNAL SIGTERM
# A worker tries for 30 s to reach its server at the start.
HEALTHCHECK --interval=30s --timeout=15s --start-period=45s --retries=3 \
    CMD ["dispatcher", "health"]
ENTRYPOINT ["dispatcher"]
CMD ["worker"]
