# syntax=docker/dockerfile:1
# One image with both programs; each Deployment starts one of them.

# The compiler version of rust-toolchain.toml, on the same Debian release as the image below, so that the programs run
# with the libc that they are linked with. A test compares both.
FROM rust:1.95.0-bookworm AS build
# Build: the headers of libvirt. Run time: the library of libvirt, with the shared libraries that it needs and that the
# image below does not have. Connections over SSH use libssh, which is one of them. The state of the packages that they
# are from is copied, too, so that scanners of the image find them.
RUN apt-get update && apt-get install --yes --no-install-recommends libvirt-dev \
    && libraries=/usr/lib/$(uname --machine)-linux-gnu \
    && status=/libvirt/var/lib/dpkg/status.d \
    && mkdir --parents /libvirt$libraries $status \
    && ldd $libraries/libvirt.so.0 | sed --quiet 's/.* => \([^ ]*\) .*/\1/p' | sort --unique \
    | grep --invert-match --extended-regexp '/(libc|libm|libgcc_s|libresolv|ld-linux[^.]*)\.so' > /copied \
    && echo $libraries/libvirt.so.0 >> /copied \
    && xargs cp --dereference --target-directory=/libvirt$libraries < /copied \
    && sed 's,.*/\([^/]*/[^/]*\)$,*/\1,' /copied | xargs dpkg-query --search | sed 's/[,:] .*//' | sort --unique > /packages \
    && while read -r package; do dpkg-query --status $package > $status/${package%:*} || exit 1; done < /packages
WORKDIR /source
COPY Cargo.toml Cargo.lock LICENSE ./
COPY common common
COPY certs certs
COPY webhook webhook
COPY controller controller
# Members of the workspace that cargo must find; nothing of them is built here.
COPY tests tests
# The commit that `/version` of the programs shows.
ARG GIT_COMMIT=
# The date and the time that a C library contains.
ENV SOURCE_DATE_EPOCH=0
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --release --locked --package webhook --package controller --features controller/libvirt \
    && mkdir /programs \
    && cp target/release/machine-webhook target/release/machine-controller /programs/

# libc, libm and libgcc, without a shell.
FROM gcr.io/distroless/cc-debian12:nonroot
ARG GIT_COMMIT=
LABEL org.opencontainers.image.source=https://github.com/vitistack/kubevirt-operator \
    org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.revision=$GIT_COMMIT
COPY --from=build /libvirt/ /
COPY --from=build /source/LICENSE /LICENSE
COPY --from=build /programs/machine-webhook /machine-webhook
COPY --from=build /programs/machine-controller /machine-controller
# A number, so that the kubelet can verify runAsNonRoot.
USER 65532:65532
