# The daemon in an image, for a CPU or for TPUs:
#
#   docker build --target cpu -t hotreload:cpu .
#   docker build --target tpu -t hotreload:tpu .
#
# CONSTRAINTS=constraints-0.1.txt with ENGINE='sglang-jax[cpu]==0.1.0rc0' (or [tpu]) takes the newer
# engine; without them it is the release that pip finds, at the versions that were tested.
# A pipeline adds what it alone knows: --label org.opencontainers.image.revision=$(git rev-parse HEAD)
# docs/start.md says how to run it.

# The digest is that of all platforms, as Docker's library published it on 2026-09-01. Take a newer
# one, tag and digest together, for the mended libraries that are in it.
FROM python:3.12.14-slim-trixie@sha256:e5c9fa26ffb76e11e0f054f30dc2523a2f9693f0c36c0cf1e39b27e152d899fc AS base
LABEL org.opencontainers.image.title="hotreload" \
    org.opencontainers.image.description="Keeps a running sglang-jax engine's weights equal to the newest good checkpoint." \
    org.opencontainers.image.licenses="Apache-2.0"
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    HOTRELOAD_CONFIG=/etc/hotreload/hotreload.toml
RUN useradd --system --home-dir /var/lib/hotreload hotreload \
    && install -d -o hotreload -g hotreload \
        /etc/hotreload /run/hotreload /var/lib/hotreload
WORKDIR /opt/hotreload
# What hotreload needs is gigabytes. It is installed before our sources come, so that a change of
# those installs nothing of it again.
COPY pyproject.toml constraints.txt constraints-0.1.txt ./
RUN python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["dependencies"], sep="\n")' >needed.txt
ARG CONSTRAINTS=constraints.txt

FROM base AS needed-cpu
ARG ENGINE=sglang-jax
RUN pip install --constraint "$CONSTRAINTS" --requirement needed.txt "$ENGINE"

FROM base AS needed-tpu
ARG ENGINE=sglang-jax
RUN pip install --constraint "$CONSTRAINTS" --requirement needed.txt 'jax[tpu]' "$ENGINE"

FROM needed-cpu AS cpu
COPY README.md LICENSE ./
COPY hotreload hotreload
COPY systemd systemd
COPY docs docs
RUN pip install --constraint "$CONSTRAINTS" .
ENV JAX_PLATFORMS=cpu
USER hotreload
VOLUME ["/var/lib/hotreload"]
# A start may compile for minutes; from then on an answer within seconds is the rule.
HEALTHCHECK --start-period=30m CMD ["hotreload", "status", "--wait=ready", "--timeout=5"]
# SIGTERM lets requests under way be answered, for 30 seconds: docker stop --time 45.
CMD ["hotreload", "serve"]

FROM needed-tpu AS tpu
COPY README.md LICENSE ./
COPY hotreload hotreload
COPY systemd systemd
COPY docs docs
RUN pip install --constraint "$CONSTRAINTS" '.[tpu]'
# The device files of a TPU belong to root: what runs as another user needs them by --device.
USER hotreload
VOLUME ["/var/lib/hotreload"]
HEALTHCHECK --start-period=30m CMD ["hotreload", "status", "--wait=ready", "--timeout=5"]
CMD ["hotreload", "serve"]
