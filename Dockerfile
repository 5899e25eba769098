# Image with Convoy, its CPU kernels and its JPEG decoder; the argument JAX adds TPUs or GPUs:
#
#   docker build --tag convoy .
#   docker build --tag convoy:tpu --build-arg JAX=tpu .
#   docker build --tag convoy:gpu --build-arg JAX=cuda12 .
#   docker run --rm --volume "$PWD:/workspace" convoy launch --num-instances 2 train.py
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
# The versions are those of the Debian release that the tag names.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libjpeg62-turbo-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY licenses licenses
COPY src src
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim-bookworm
ARG JAX=""
# What the kernels and the decoder are linked with.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 libjpeg62-turbo \
    && rm -rf /var/lib/apt/lists/*
# The wheel's requirements choose the versions.
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    wheel=$(echo /wheels/*.whl) \
    && python -m pip install --no-cache-dir "${wheel}[images,plot,serving]" ${JAX:+"jax[$JAX]"} \
    && convoy doctor
RUN useradd --uid 1000 --create-home convoy \
    && install --directory --owner convoy /workspace
USER 1000
WORKDIR /workspace
ENTRYPOINT ["convoy"]
CMD ["--help"]
