# The verbs of the repository. Without `just`: tests/lab <verb>.

[private]
default:
    @just --list --unsorted

# A control plane with everything running and the examples applied, until Ctrl-C; --node: on a real node.
up *arguments:
    tests/lab up {{arguments}}

# A demonstration: good Machines run, a bad one is refused with every fault named.
demo:
    tests/lab demo

# Every test, against a real control plane, several suites at a time. Arguments go to cargo test; tests that cannot
# run here are listed as skipped.
test *arguments:
    tests/lab test {{arguments}}

# Format, layers, lints, and that the core stays pure.
lint:
    tests/lab lint

# Whether the licence of everything in the programs is one of deny.toml; asks no service but the registry of crates.
licenses:
    tests/lab licenses

# Write target/sbom.cdx.json, a bill of materials of the programs.
sbom:
    tests/lab sbom

# Write target/image/kubevirt-operator.tar, the image of both programs, without a container engine; --tag names it,
# --architecture arm64 makes it for another machine.
image *arguments:
    tests/lab image {{arguments}}

# Write manifests/crds, docs/rules.md, the graph in docs/development.md and parts of the Helm chart from the code;
# --check only compares.
generate *arguments:
    tests/lab generate {{arguments}}

# The webhook over TLS beside a bare echo server: p50, p99, throughput, memory. --quick for a first impression;
# --save <file> and --compare <file> compare two commits.
bench *arguments:
    tests/lab bench {{arguments}}

# Fleets of Machines: writes of the controller for each, waits, memory, a restart, an idle minute.
bench-controller *machines:
    tests/lab bench-controller {{machines}}

# What other clients notice of clients that use all that they can get: probes, reviews and memory under load.
bench-load:
    tests/lab bench-load

# Look for inputs that violate an invariant, so many seconds for each target; needs a nightly compiler.
fuzz seconds="60":
    tests/lab fuzz --seconds {{seconds}}
