//! Names, addresses and the bridge. They exist in the lab's network namespace only, so that all labs have the same.

use std::net::Ipv4Addr;

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

/// An address of the node that no pod gets, for a client of this number, from 1 to [`CLIENTS`].
pub fn client(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, 1, number)
}

/// The number of addresses for clients.
const CLIENTS: u8 = 20;

/// The commands that make the bridge. The route gives packets to Services a first direction; kube-proxy rewrites them.
pub(super) fn commands() -> String {
    let clients = (1..=CLIENTS).map(client);
    let clients: Vec<_> = clients
        .map(|address| format!("ip address add {address}/32 dev {BRIDGE}\n"))
        .collect();
    let clients = clients.concat();
    format!(
        "ip link set lo up
ip link add {BRIDGE} type bridge
ip address add {ADDRESS}/24 dev {BRIDGE}
{clients}ip link set {BRIDGE} up
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
