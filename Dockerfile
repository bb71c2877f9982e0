# The daemon in an image, for a CPU, TPUs or a GPU:
#
#   docker build -t hotreload:cpu .
#   docker build --build-arg DEVICE=tpu -t hotreload:tpu .
#
# ENGINE='sglang-jax[cpu]==0.1.0rc0' (or [tpu]) with CONSTRAINTS=constraints-0.1.txt takes the newer
# engine; without them it is the release that pip finds, at the versions that were tested.
# A pipeline adds what it alone knows: --label org.opencontainers.image.revision=$(git rev-parse HEAD)
# docs/start.md says how to run it; deploy/ has a compose file, and manifests for Kubernetes.

# The digest is that of all platforms, as Docker's library published it on 2026-09-01. Take a newer
# one, tag and digest together, for the mended libraries that are in it.
FROM python:3.12.14-slim-trixie@sha256:e5c9fa26ffb76e11e0f054f30dc2523a2f9693f0c36c0cf1e39b27e152d899fc AS base

FROM base AS built
# cpu, tpu or gpu.
ARG DEVICE=cpu
ARG ENGINE=sglang-jax
ARG CONSTRAINTS=constraints.txt
ENV PIP_NO_CACHE_DIR=1
WORKDIR /src
# What hotreload needs is gigabytes. It is installed before our sources come, so that a change of
# those installs nothing of it again. sglang-jax brings libtpu, 640 MB, wherever it runs.
COPY pyproject.toml constraints.txt constraints-0.1.txt ./
RUN python3 -c 'import os, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["dependencies"], *{"cpu": [], **project["optional-dependencies"]}[os.environ["DEVICE"]], sep="\n")' >needed.txt \
    && python3 -m venv --without-pip /opt/hotreload \
    && pip --python /opt/hotreload/bin/python install --constraint "$CONSTRAINTS" --requirement needed.txt "$ENGINE" \
    && if [ "$DEVICE" != tpu ]; then pip --python /opt/hotreload/bin/python uninstall --yes libtpu; fi
COPY README.md LICENSE ./
COPY hotreload hotreload
COPY systemd systemd
COPY docs docs
RUN pip --python /opt/hotreload/bin/python install --no-deps .

FROM base
LABEL org.opencontainers.image.title="hotreload" \
    org.opencontainers.image.description="Keeps a running sglang-jax engine's weights equal to the newest good checkpoint." \
    org.opencontainers.image.licenses="Apache-2.0"
# A number, so that Kubernetes can see that it is not root.
RUN useradd --uid 10001 --home-dir /var/lib/hotreload hotreload \
    && install -d -o hotreload -g hotreload \
        /etc/hotreload /run/hotreload /var/lib/hotreload
COPY --from=built /opt/hotreload /opt/hotreload
ENV PATH=/opt/hotreload/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOTRELOAD_CONFIG=/etc/hotreload/hotreload.toml
USER 10001:10001
WORKDIR /var/lib/hotreload
VOLUME ["/var/lib/hotreload"]
# It lets requests under way be answered, for 30 seconds: docker stop --time 45.
STOPSIGNAL SIGTERM
# A start may compile for minutes; from then on an answer within seconds is the rule.
HEALTHCHECK --start-period=30m CMD ["hotreload", "status", "--wait=ready", "--timeout=5"]
# Or: docker run ... hotreload:cpu launch --model-path /models/qwen3 --watch /checkpoints
ENTRYPOINT ["hotreload"]
CMD ["serve"]
