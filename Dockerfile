# syntax=docker/dockerfile:1
# One image with both programs; each Deployment names its own.

# The compiler of rust-toolchain.toml, on the Debian of the image below: programs run with the libc they were
# linked with. A test compares.
FROM rust:1.95.0-bookworm AS build
WORKDIR /source
COPY Cargo.toml Cargo.lock LICENSE ./
COPY common common
COPY certs certs
COPY webhook webhook
COPY controller controller
# Members of the workspace, of which nothing is built here.
COPY tests tests
# What `/version` of the programs tells.
ARG GIT_COMMIT=
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --release --locked --package webhook --package controller \
    && mkdir /programs \
    && cp target/release/machine-webhook target/release/machine-controller /programs/

# libc, libm, libgcc and nothing to log in with.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /source/LICENSE /LICENSE
COPY --from=build /programs/machine-webhook /machine-webhook
COPY --from=build /programs/machine-controller /machine-controller
# By number, so that a kubelet can see that it is not root.
USER 65532:65532
