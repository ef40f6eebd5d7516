# signfade on CPUs:
#   docker build -t signfade .
#   docker run --rm -v "$PWD/runs:/work/runs" signfade run
# The default build of torch brings gigabytes of CUDA. For the small one name the index of torch's CPU builds:
#   docker build -t signfade --build-arg TORCH_INDEX=URL .
FROM python:3.12-slim AS build
ARG TORCH_INDEX=""
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
# torch goes first and alone: pip then never looks for another build of it. CPU builds have a suffix in their
# version, which a pin without one accepts.
RUN python -m venv /opt/signfade \
    && /opt/signfade/bin/pip install --no-cache-dir -c constraints.txt \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch \
    && /opt/signfade/bin/pip install --no-cache-dir -c constraints.txt ".[flower,tracking]"

FROM python:3.12-slim
COPY --from=build /opt/signfade /opt/signfade
RUN useradd --create-home --uid 1000 signfade \
    && mkdir -p /work/runs \
    && chown -R signfade /work
# Kernels are compiled at the first run; their cache must be where the user may write.
ENV PATH=/opt/signfade/bin:$PATH \
    NUMBA_CACHE_DIR=/home/signfade/.cache/numba \
    FLWR_TELEMETRY_ENABLED=0 \
    RAY_USAGE_STATS_ENABLED=0
USER 1000
WORKDIR /work
ENTRYPOINT ["signfade"]
CMD ["--help"]
