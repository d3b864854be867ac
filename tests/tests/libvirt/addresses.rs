//! A first guest: an image by name boots, has the key of its cloud-init, a disk that is named in the guest, and answers
//! at the address that was allocated.

use lab::{image_server::ImageServer, libvirt::image, objects::ADDRESS, wait};
use serde_json::{Value, json};

use crate::environment::Environment;
use crate::images::{PATH, checksum, qcow2};

/// No service of the guest has this port: its kernel refuses a connection to it.
const PORT: u16 = 9;
const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHNvbWVib2R5J3Mga2V5IGZvciB0aGlzIHRlc3Q user@example.com";

/// A network on which libvirt runs a DHCP server for 192.168.<number>.0/24.
fn network(subnet: &str) -> Value {
    let base = subnet.trim_end_matches(".0/24");
    let subnet = json!({"cidr": subnet, "ranges": [format!("{base}.200-{base}.201")]});
    json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "NetworkConfiguration",
        "metadata": {"name": "lan", "namespace": "default"},
        "spec": {"bridge": "br-second", "ipam": {"subnets": [subnet]}},
    })
}

/// The subnet of the libvirt network `second`.
async fn subnet(env: &Environment) -> String {
    let definition = env.virsh(&["net-dumpxml", "second"]).await;
    let (_, rest) = definition.split_once("<ip address='").unwrap();
    let (own, _) = rest.split_once('\'').unwrap();
    let (base, _) = own.rsplit_once('.').unwrap();
    format!("{base}.0/24")
}

/// The addresses that the DHCP server of the network keeps.
async fn kept(env: &Environment) -> Vec<String> {
    let definition = env.virsh(&["net-dumpxml", "second"]).await;
    let entries = definition.split("<host ").skip(1);
    let address = |entry: &str| {
        entry
            .split("ip='")
            .nth(1)
            .unwrap()
            .split('\'')
            .next()
            .unwrap()
            .to_owned()
    };
    entries.map(address).collect()
}

/// Waits until the guest's kernel answers at the address.
async fn until_answers(env: &Environment, address: &str) {
    wait::until("the guest to answer", async || {
        let answer = env.libvirt.connect_to(address, PORT).await?;
        let is_refused = answer.stderr.contains("Connection refused");
        Ok(if is_refused { Ok(()) } else { Err(answer) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_image_by_name_boots_and_answers_at_its_allocated_address() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let content = qcow2(&image().await.unwrap(), &env.libvirt.path("guest.qcow2"));
    let checksum = checksum(&content);
    let server = ImageServer::start().unwrap();
    let url = server.serve(PATH, content);
    env.allow(&url).await;
    let image = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachineImage", "metadata": {"name": "tiny"},
        "spec": {
            "source": {"url": url, "checksum": checksum}, "os": "linux", "minDiskSize": "1Gi",
            "defaultUser": "guest",
        },
    });
    env.lab.apply(&image).await.unwrap();
    let subnet = subnet(&env).await;
    env.lab.apply(&network(&subnet)).await.unwrap();

    let spec = json!({
        "disks": [{"name": "root", "storageClass": "local", "image": {"name": "tiny"}}],
        "networks": [{"name": "eth0", "networkName": "lan"}],
        "cloudInit": {"userData": format!("#cloud-config\nssh_authorized_keys:\n- {KEY}\n")},
    });
    env.apply("first", &spec).await;
    let first = env.until_reachable("first").await;
    let card = &first["status"]["networkInterfaces"][0];
    let [address] = card["allocatedAddresses"].as_array().unwrap().as_slice() else {
        panic!("{card}");
    };
    let address = address.as_str().unwrap();
    let base = subnet.trim_end_matches(".0/24");
    assert!(
        [200, 201]
            .map(|it| format!("{base}.{it}"))
            .contains(&address.to_owned())
    );
    let reports = |report: &lab::libvirt::Report| {
        let mut cards = report.nics.values();
        cards.any(|card| card.address == address) && report.user_data.contains(KEY)
    };
    let report = env
        .until_report("first", "its address and key", reports)
        .await;
    assert_eq!(report.serials.values().collect::<Vec<_>>(), ["root"]);
    // For guests that read it from the seed instead.
    let data: Value = serde_json::from_str(&report.network_config).unwrap();
    assert_eq!(
        data["ethernets"]["eth0"]["addresses"],
        json!([format!("{address}/24")])
    );
    assert_eq!(kept(&env).await, [address]);
    until_answers(&env, address).await;

    env.delete("first").await;
    assert_eq!(kept(&env).await, [""; 0]);
    let addresses = env.lab.objects(ADDRESS, "");
    wait::until("the address to be released", async || {
        let left = addresses.list().await?;
        Ok(if left.is_empty() { Ok(()) } else { Err(left) })
    })
    .await
    .unwrap();
}
