# Images for training with paceline. Not built by our tests: no container engine is available there.
#
#   docker build -t paceline .                                        CPU
#   docker build -t paceline:cuda --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .
#   docker run --rm --shm-size=8g paceline race -np 2 --quick
#
# torch is the build that the base needs: its index is an argument, https://download.pytorch.org/whl/cpu or .../cu128.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv openssh-client openssh-server iproute2 g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/paceline
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY paceline ./paceline
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir -c constraints.txt --extra-index-url "${TORCH_INDEX}" .
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /work
ENTRYPOINT ["paceline"]
CMD ["doctor"]
