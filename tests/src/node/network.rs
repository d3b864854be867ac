//! Names, addresses and the bridge. They exist in the lab's network namespace only, so that all labs have the same.

use serde_json::{Value, json};

/// The bridge of all pods.
pub(super) const BRIDGE: &str = "lab";

/// The names of the nodes.
pub const NODES: [&str; 2] = ["node", "node-2"];

/// The address of all nodes and of the API server.
pub const ADDRESS: &str = "10.244.0.1";

/// The addresses of pods.
pub(super) const PODS: &str = "10.244.0.0/24";

/// The addresses of Services.
pub(crate) const SERVICES: &str = "10.96.0.0/16";

/// The address of the Service `kubernetes`, which is the first one.
pub(crate) const API_SERVICE: &str = "10.96.0.1";

/// The commands that make the bridge. The route gives packets to Services a first direction; kube-proxy rewrites them.
pub(super) fn commands() -> String {
    format!(
        "ip link set lo up
ip link add {BRIDGE} type bridge
ip address add {ADDRESS}/24 dev {BRIDGE}
ip link set {BRIDGE} up
ip route add default dev {BRIDGE}
echo 1 > /proc/sys/net/ipv4/ip_forward
"
    )
}

/// What the CNI plugins of Debian do for each pod.
pub(super) fn cni() -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": BRIDGE,
        "plugins": [{
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni",
                "ranges": [[{"subnet": PODS}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
}
