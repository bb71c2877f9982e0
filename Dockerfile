# The daemon in an image, for a CPU or for TPUs:
#
#   docker build --target cpu -t hotreload:cpu .
#   docker build --target tpu -t hotreload:tpu .
#
# CONSTRAINTS=constraints-0.1.txt with ENGINE='sglang-jax[cpu]==0.1.0rc0' (or [tpu]) takes the newer
# engine; without them it is the release that pip finds, at the versions that were tested.
# docs/installing.md says how to run it.

FROM python:3.12-slim AS base
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    HOTRELOAD_CONFIG=/etc/hotreload/hotreload.toml
RUN useradd --system --home-dir /var/lib/hotreload hotreload \
    && install -d -o hotreload -g hotreload \
        /etc/hotreload /run/hotreload /var/lib/hotreload
WORKDIR /opt/hotreload
COPY pyproject.toml README.md LICENSE constraints.txt constraints-0.1.txt ./
COPY hotreload hotreload
COPY systemd systemd
COPY docs docs
ARG CONSTRAINTS=constraints.txt

FROM base AS installed-cpu
ARG ENGINE=sglang-jax
RUN pip install --constraint "$CONSTRAINTS" . "$ENGINE"

FROM base AS installed-tpu
ARG ENGINE=sglang-jax
RUN pip install --constraint "$CONSTRAINTS" '.[tpu]' "$ENGINE"

FROM installed-cpu AS cpu
ENV JAX_PLATFORMS=cpu
USER hotreload
VOLUME ["/var/lib/hotreload"]
# A start may compile for minutes; from then on an answer within seconds is the rule.
HEALTHCHECK --start-period=30m CMD ["hotreload", "status", "--wait=ready", "--timeout=5"]
# SIGTERM lets requests under way be answered, for 30 seconds: docker stop --time 45.
CMD ["hotreload", "serve"]

FROM installed-tpu AS tpu
# The device files of a TPU belong to root: what runs as another user needs them by --device.
USER hotreload
VOLUME ["/var/lib/hotreload"]
HEALTHCHECK --start-period=30m CMD ["hotreload", "status", "--wait=ready", "--timeout=5"]
CMD ["hotreload", "serve"]
