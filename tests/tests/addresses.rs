//! IP addresses of Machines: given, allocated, held by one Machine only, exhausted and released.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use std::collections::BTreeSet;

use lab::{
    objects::{ADDRESS, NETWORK, VM, condition, condition_message, namespace},
    wait,
};
use serde_json::{Value, json};

use environment::{Environment, machine};

fn network(namespace: &str, ipam: &Value) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "NetworkConfiguration",
        "metadata": {"name": "lan", "namespace": namespace},
        "spec": {"bridge": "br0", "mtu": 1400, "ipam": ipam},
    })
}

fn small_ipam() -> Value {
    json!({
        "subnets": [{"cidr": "10.0.0.0/29", "gateway": "10.0.0.1", "ranges": ["10.0.0.4-10.0.0.5"]}],
        "dns": ["10.0.0.53"],
    })
}

/// A Machine on the network, with this address or with an allocated one.
fn on_lan(given: Option<&str>) -> Value {
    let mut card = json!({"name": "eth0", "networkName": "lan"});
    if let Some(given) = given {
        card["ipAddresses"] = json!([given]);
    }
    json!({"template": "small", "networks": [card, {"name": "pod"}]})
}

fn allocated(machine: &Value) -> Vec<String> {
    let cards = machine["status"]["networkInterfaces"].as_array();
    let cards = cards.into_iter().flatten();
    let addresses = cards.filter_map(|card| card["allocatedAddresses"].as_array());
    let addresses = addresses.flatten().filter_map(Value::as_str);
    addresses.map(str::to_owned).collect()
}

/// The addresses that are held, each with the name of its Machine.
async fn held(env: &Environment) -> Vec<(String, String)> {
    let locks = env.lab.objects(ADDRESS, "").list().await.unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let lock = |lock: &Value| {
        let spec = &lock["spec"];
        (text(&spec["address"]), text(&spec["machineRef"]["name"]))
    };
    let mut held: Vec<_> = locks.iter().map(lock).collect();
    held.sort();
    held
}

async fn until_held(env: &Environment, expected: &[(&str, &str)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(address, machine)| ((*address).to_owned(), (*machine).to_owned()))
        .collect();
    wait::until("the addresses to be held", async || {
        let held = held(env).await;
        Ok(if held == expected { Ok(()) } else { Err(held) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn addresses_are_given_allocated_exhausted_and_released() {
    let env = Environment::new().await;
    env.apply(&namespace("test", &json!({}))).await;
    env.apply(&network("default", &small_ipam())).await;
    env.apply(&network("test", &small_ipam())).await;
    let machines = env.machines();

    // A given address, outside the ranges.
    env.apply(&machine("web", &on_lan(Some("10.0.0.2")))).await;
    let web = machines.until_phase("web", "Running").await.unwrap();
    assert_eq!(allocated(&web), ["10.0.0.2"]);
    until_held(&env, &[("10.0.0.2", "web")]).await;
    let of_namespace = async |namespace: &str| {
        let selector = format!("spec.machineRef.namespace={namespace}");
        let list = [
            "get",
            "maddr",
            "--no-headers",
            "--field-selector",
            &selector,
        ];
        let output = env.lab.kubectl().run(&list).await.unwrap();
        assert_eq!(output.code, 0, "{output:?}");
        output.stdout
    };
    assert!(of_namespace("default").await.contains("10.0.0.2"));
    assert_eq!(of_namespace("test").await, "");
    let vm = env.objects(VM).get("web").await.unwrap();
    let volumes = vm["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .unwrap();
    let data = volumes
        .iter()
        .find_map(|volume| volume["cloudInitNoCloud"]["networkData"].as_str());
    let data: Value = serde_json::from_str(data.unwrap()).unwrap();
    let card = &data["ethernets"]["eth0"];
    assert_eq!(card["addresses"], json!(["10.0.0.2/29"]));
    assert_eq!(card["routes"][0]["via"], "10.0.0.1");
    assert_eq!(card["mtu"], 1400);
    assert_eq!(card["nameservers"]["addresses"], json!(["10.0.0.53"]));
    assert_eq!(data["ethernets"]["pod"]["dhcp4"], true);
    let interfaces = &vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
    assert_eq!(card["match"]["macaddress"], interfaces[0]["macAddress"]);

    // At admission, in both namespaces of the segment.
    let refused = async |namespace: &str, holder: &str| {
        let mut twin = machine("twin", &on_lan(Some("10.0.0.2")));
        twin["metadata"]["namespace"] = namespace.into();
        let expected =
            format!("spec.networks[0].ipAddresses[0]: Duplicate value: \"10.0.0.2\": {holder}");
        wait::until("the address to be refused", async || {
            let dry = ["apply", "--dry-run=server", "-f", "-"];
            let output = env.lab.kubectl().run_with(&dry, twin.to_string()).await?;
            let answer = output.refused();
            Ok(match answer {
                Ok(text) if text.contains(&expected) && text.contains("[AddressInUse]") => Ok(()),
                other => Err(format!("{other:?}")),
            })
        })
        .await
        .unwrap();
    };
    refused("default", "Machine 'web' has this address on 'lan'").await;
    refused(
        "test",
        "a Machine of another namespace has this address on the same network segment",
    )
    .await;

    // Two addresses are allocated; the third Machine gets none.
    env.apply(&machine("one", &on_lan(None))).await;
    let one = machines.until_phase("one", "Running").await.unwrap();
    env.apply(&machine("two", &on_lan(None))).await;
    let two = machines.until_phase("two", "Running").await.unwrap();
    let both: BTreeSet<_> = [allocated(&one), allocated(&two)]
        .concat()
        .into_iter()
        .collect();
    assert_eq!(both, ["10.0.0.4", "10.0.0.5"].map(str::to_owned).into());
    env.apply(&machine("three", &on_lan(None))).await;
    let exhausted =
        machines.until_condition("three", "NetworkReady", "False", "AddressesExhausted");
    let exhausted = exhausted.await.unwrap();
    let message = condition_message(&exhausted, "NetworkReady").unwrap();
    assert!(
        message.contains("2 of the 2 that NetworkConfiguration 'lan' allocates"),
        "{message}"
    );
    assert!(env.objects(VM).find("three").await.unwrap().is_none());
    let full = |network: &Value| {
        let status = &network["status"];
        status["addressesInUse"] == 3
            && status["addressesTotal"] == 2
            && status["machines"] == 4
            && condition(network, "AddressesAvailable")["reason"] == "AddressesExhausted"
    };
    let networks = env.objects(NETWORK);
    networks
        .until("lan", "to show the use", full)
        .await
        .unwrap();

    // An address that is released goes to the Machine that waits.
    let [freed] = &allocated(&one)[..] else {
        panic!("{one}")
    };
    machines.delete("one").await.unwrap();
    let three = machines.until_phase("three", "Running").await.unwrap();
    assert_eq!(allocated(&three), std::slice::from_ref(freed));
}

/// The webhook does not know the network yet, so it accepts the address with a warning.
#[tokio::test]
async fn the_address_of_the_gateway_is_given_to_no_guest() {
    let env = Environment::new().await;
    env.apply(&machine("web", &on_lan(Some("10.0.0.1")))).await;
    env.apply(&network("default", &small_ipam())).await;
    let reason = "NetworkFailed";
    let machines = env.machines();
    let refused = machines.until_condition("web", "NetworkReady", "False", reason);
    let refused = refused.await.unwrap();
    let conditions = refused["status"]["conditions"].as_array().unwrap().iter();
    let mut messages = conditions.filter(|it| it["reason"] == reason);
    let message = messages.next().unwrap()["message"].as_str().unwrap();
    let part = "10.0.0.1, which is the gateway of 10.0.0.0/29: take another of 10.0.0.1-10.0.0.6";
    assert!(message.contains(part), "{message}");
    assert_eq!(
        env.lab.objects(ADDRESS, "").list().await.unwrap(),
        [json!(null); 0]
    );
}

fn in_namespace(mut object: Value, namespace: &str) -> Value {
    object["metadata"]["namespace"] = namespace.into();
    object
}

#[tokio::test]
async fn of_two_machines_that_name_one_address_in_the_same_moment_one_runs() {
    let env = Environment::new().await;
    env.apply(&namespace("test", &json!({}))).await;
    for namespace in ["default", "test"] {
        env.apply(&network(namespace, &small_ipam())).await;
    }
    // Admission of neither knows the other one.
    let twin = machine("twin", &on_lan(Some("10.0.0.2")));
    let given = env.accepted(&twin).await;
    let other = env.accepted(&in_namespace(twin, "test")).await;
    env.lab.unregister_webhooks().await.unwrap();
    let (one, two) = tokio::join!(env.lab.apply(&given), env.lab.apply(&other));
    one.unwrap();
    two.unwrap();
    until_held(&env, &[("10.0.0.2", "twin")]).await;
    let locks = env.lab.objects(ADDRESS, "").list().await.unwrap();
    let winner = locks[0]["spec"]["machineRef"]["namespace"]
        .as_str()
        .unwrap();
    let loser = if winner == "test" { "default" } else { "test" };
    let in_each = |namespace: &str| env.lab.objects(lab::objects::MACHINE, namespace);
    in_each(winner)
        .until_phase("twin", "Running")
        .await
        .unwrap();
    let waits = in_each(loser);
    let waits = waits.until_condition("twin", "NetworkReady", "False", "AddressInUse");
    waits.await.unwrap();
    assert!(
        env.lab
            .objects(VM, loser)
            .find("twin")
            .await
            .unwrap()
            .is_none()
    );
    // The address goes to the one that waits.
    in_each(winner).delete("twin").await.unwrap();
    in_each(loser).until_phase("twin", "Running").await.unwrap();
}

#[tokio::test]
async fn a_machine_keeps_its_addresses_through_restarts_and_without_a_finalizer_they_are_released()
{
    let mut env = Environment::new().await;
    let dual = json!({"subnets": [
        {"cidr": "10.0.0.0/29", "ranges": ["10.0.0.4-10.0.0.5"]},
        {"cidr": "2001:db8::/64", "ranges": ["2001:db8::10-2001:db8::11"]},
    ]});
    env.apply(&network("default", &dual)).await;
    let machines = env.machines();
    env.apply(&machine("web", &on_lan(None))).await;
    let web = machines.until_phase("web", "Running").await.unwrap();
    let both = allocated(&web);
    assert_eq!(both.len(), 2, "one of each family: {both:?}");

    // The same addresses after a restart, and after a stop and a start.
    env.controller.stop().await.unwrap();
    env.controller.start_again().unwrap();
    for power in ["Stopped", "Running"] {
        machines
            .merge("web", &json!({"spec": {"powerState": power}}))
            .await
            .unwrap();
        let web = machines.until_phase("web", power).await.unwrap();
        assert_eq!(allocated(&web), both);
    }

    // The guest keeps the address inside until it reports another one, so it stays the Machine's beside the new one.
    env.apply(&machine("web", &on_lan(Some("10.0.0.2")))).await;
    let old = both.iter().find(|address| address.contains('.')).unwrap();
    let holds_both = |machine: &Value| {
        let held = allocated(machine);
        held.contains(old) && held.contains(&"10.0.0.2".to_owned())
    };
    machines
        .until("web", "to hold both", holds_both)
        .await
        .unwrap();
    machines.delete("web").await.unwrap();
    until_held(&env, &[]).await;

    // Deleted without the controller, as after a finalizer that somebody removed: nothing holds the address for ever.
    env.apply(&machine("gone", &on_lan(Some("10.0.0.3")))).await;
    machines.until_phase("gone", "Running").await.unwrap();
    env.controller.stop().await.unwrap();
    machines.delete("gone").await.unwrap();
    let release = json!({"metadata": {"finalizers": null}});
    machines.merge("gone", &release).await.unwrap();
    machines.until_gone("gone").await.unwrap();
    assert_eq!(
        held(&env).await,
        [("10.0.0.3".to_owned(), "gone".to_owned())]
    );
    env.controller.start_again().unwrap();
    until_held(&env, &[]).await;
}
