# syntax=docker/dockerfile:1
# One image with both programs; each Deployment names its own.

# The compiler of rust-toolchain.toml, on the Debian of the image below: programs run with the libc they were
# linked with. A test compares.
FROM rust:1.95.0-bookworm AS build
# The headers of libvirt; and what the controller needs of it where it runs: its library and ssh, with all they are
# linked with but for what the image has.
RUN apt-get update && apt-get install --yes --no-install-recommends libvirt-dev openssh-client \
    && libraries=/usr/lib/$(uname --machine)-linux-gnu \
    && mkdir --parents /libvirt/usr/bin /libvirt$libraries \
    && cp /usr/bin/ssh /libvirt/usr/bin/ \
    && ldd $libraries/libvirt.so.0 /usr/bin/ssh | sed --quiet 's/.* => \([^ ]*\) .*/\1/p' | sort --unique \
    | grep --invert-match --extended-regexp '/(libc|libm|libgcc_s|libresolv|ld-linux[^.]*)\.so' \
    | xargs cp --dereference --target-directory=/libvirt$libraries $libraries/libvirt.so.0
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
    cargo build --release --locked --package webhook --package controller --features controller/libvirt \
    && mkdir /programs \
    && cp target/release/machine-webhook target/release/machine-controller /programs/

# libc, libm, libgcc and nothing to log in with.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /libvirt/ /
COPY --from=build /source/LICENSE /LICENSE
COPY --from=build /programs/machine-webhook /machine-webhook
COPY --from=build /programs/machine-controller /machine-controller
# By number, so that a kubelet can see that it is not root.
USER 65532:65532
