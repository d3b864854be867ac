//! The commands of `docs/guests.md`, run in the order of the page. The guests are those of the simulator.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    Kubectl, Lab, Scenario,
    objects::{ADDRESS, CLAIM, HOST, IMAGE, MACHINE, namespace},
    pages::{blocks, page, section},
    wait,
};
use serde_json::{Value, json};

use environment::{Environment, machine};

/// The lines of the blocks of commands of a section; a command that goes on on the next line is one line.
fn commands(part: &str) -> Vec<String> {
    let all = [blocks(part, "console"), blocks(part, "sh")]
        .concat()
        .concat();
    let lines = all.lines().map(|line| line.trim().to_owned());
    lines.collect()
}

async fn run(kubectl: &Kubectl, command: &str) -> String {
    kubectl.shell(command, &[]).await.unwrap().ok().unwrap()
}

/// Applies the first whole object of a section's YAML blocks.
async fn apply_first(kubectl: &Kubectl, part: &str) {
    let yaml = blocks(part, "yaml");
    let object = yaml.iter().find(|text| text.starts_with("apiVersion:"));
    let apply = ["apply", "-f", "-"];
    let applied = kubectl.run_with(&apply, object.unwrap()).await;
    applied.unwrap().ok().unwrap();
}

async fn bound_claim(env: &Environment, name: &str, labels: &Value) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "storageClassName": "standard", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    env.bound_claim(&claim).await;
}

#[tokio::test]
async fn a_newcomer_gets_a_guest_from_an_image_by_name() {
    let page = page("guests").unwrap();
    let env = Environment::new().await;
    let kubectl = env.lab.kubectl();
    let first = section(&page, "Your first guest").unwrap();
    let done = commands(first);
    assert_eq!(done.len(), 4, "{done:?}");
    for command in &done {
        run(&kubectl, command).await;
    }
    let web = env.machines().get("first-guest").await.unwrap();
    assert_eq!(web["status"]["phase"], "Running");
    let volumes = "kubectl get machine first-guest -o jsonpath='{.status.volumes}'";
    let user = "kubectl get machineimage debian-13 -o jsonpath='{.spec.defaultUser}'";
    let text = first.replace('\n', " ");
    for (command, answer) in [(volumes, "first-guest-root"), (user, "debian")] {
        assert!(text.contains(command), "{command}");
        assert!(run(&kubectl, command).await.contains(answer), "{command}");
    }

    let images = section(&page, "Images").unwrap();
    env.apply(&namespace("os-images", &json!({}))).await;
    let [list, imports, role, binding] = &commands(images)[..] else {
        panic!("{:?}", commands(images));
    };
    assert!(run(&kubectl, list).await.contains("debian-13"));
    assert!(run(&kubectl, imports).await.contains("Succeeded"));
    // The example of this section has another source. So the import goes, because no Machine waits for it.
    apply_first(&kubectl, images).await;
    wait::until("the import to be deleted", async || {
        let answer = run(&kubectl, imports).await;
        Ok(if answer.contains("Succeeded") {
            Err(answer)
        } else {
            Ok(())
        })
    })
    .await
    .unwrap();
    run(&kubectl, role).await;
    run(&kubectl, binding).await;
    let account =
        "system:serviceaccount:kubevirt-operator-system:kubevirt-operator-controller-manager";
    let may = format!(
        "kubectl auth can-i create datavolumes.cdi.kubevirt.io/source -n os-images --as={account}"
    );
    assert_eq!(run(&kubectl, &may).await.trim(), "yes");
    assert!(
        env.lab
            .objects(IMAGE, "")
            .find("debian-13")
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn existing_disks_state_and_addresses_are_seen_with_the_commands_of_the_page() {
    let page = page("guests").unwrap();
    let env = Environment::new().await;
    let kubectl = env.lab.kubectl();

    let existing = section(&page, "Existing disks").unwrap();
    bound_claim(&env, "legacy-disk", &json!({})).await;
    apply_first(&kubectl, existing).await;
    let machines = env.machines();
    machines.until_phase("billing", "Running").await.unwrap();
    let [users, stop, delete, claim] = &commands(existing)[..] else {
        panic!("{:?}", commands(existing));
    };
    // Each line begins with the kind and the name of an object that has the claim.
    let listed = run(&kubectl, users).await;
    let [pod, instance, vm] = listed.lines().collect::<Vec<_>>()[..] else {
        panic!("{listed}");
    };
    for (line, user) in [
        (pod, "Pod/virt-launcher-billing-"),
        (instance, "VirtualMachineInstance/billing "),
        (vm, "VirtualMachine/billing "),
    ] {
        assert!(line.starts_with(user), "{listed}");
    }
    run(&kubectl, stop).await;
    machines.until_phase("billing", "Stopped").await.unwrap();
    run(&kubectl, delete).await;
    machines.until_gone("billing").await.unwrap();
    assert!(run(&kubectl, claim).await.contains("Bound"));

    let firmware = section(&page, "Firmware state, TPM, Windows").unwrap();
    let [tpm, secret, discard, kept, label] = &commands(firmware)[..] else {
        panic!("{:?}", commands(firmware));
    };
    run(&kubectl, tpm).await;
    let file = env.lab.path("autounattend.xml");
    std::fs::write(&file, "<unattend/>").unwrap();
    let file = format!("--from-file=autounattend.xml={}", file.display());
    run(
        &kubectl,
        &secret.replace("--from-file=autounattend.xml", &file),
    )
    .await;
    let with_tpm = json!({
        "template": "small", "powerState": "Stopped",
        "domain": {"devices": {"tpm": {"persistent": true}}},
    });
    let with_tpm = machine("web", &with_tpm).to_string();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    let applied = kubectl.run_with(&apply, with_tpm).await;
    applied.unwrap().ok().unwrap();
    let without = machine(
        "web",
        &json!({"template": "small", "powerState": "Stopped"}),
    );
    let take = async || kubectl.run_with(&apply, without.to_string()).await.unwrap();
    let refused = take().await.refused().unwrap();
    assert!(refused.contains("[StateDiscarded]"), "{refused}");
    run(&kubectl, discard).await;
    take().await.ok().unwrap();
    // A claim that was kept; its name ends with characters that KubeVirt chose.
    let name = label.split(' ').nth(3).unwrap();
    bound_claim(&env, name, &json!({"vitistack.io/retained-state": "web"})).await;
    assert!(run(&kubectl, kept).await.contains(name));
    run(&kubectl, label).await;
    let labels = &env.objects(CLAIM).get(name).await.unwrap()["metadata"]["labels"];
    assert_eq!(*labels, json!({"persistent-state-for": "web"}));
    machines.delete("web").await.unwrap();
    machines.until_gone("web").await.unwrap();

    let addresses = section(&page, "Addresses").unwrap();
    apply_first(&kubectl, addresses).await;
    let on_prod =
        json!({"template": "small", "networks": [{"name": "eth0", "networkName": "prod"}]});
    env.apply(&machine("web", &on_prod)).await;
    machines.until_phase("web", "Running").await.unwrap();
    let [held, of_namespace, networks, card] = &commands(addresses)[..] else {
        panic!("{:?}", commands(addresses));
    };
    let [lock] = &env.lab.objects(ADDRESS, "").list().await.unwrap()[..] else {
        panic!("no address");
    };
    let address = lock["spec"]["address"].as_str().unwrap();
    assert!(run(&kubectl, held).await.contains(address));
    assert!(run(&kubectl, of_namespace).await.contains(address));
    assert!(run(&kubectl, networks).await.contains("prod"));
    assert!(run(&kubectl, card).await.contains(address));
}

#[tokio::test]
async fn a_password_is_given_to_the_screen_of_a_machine_on_libvirt() {
    let page = page("guests").unwrap();
    let part = section(&page, "Display and console").unwrap();
    let mut lab = Lab::start().await.unwrap();
    let _webhook = lab.webhook(&[]).await.unwrap();
    let _simulator = lab.simulator(Scenario::Happy).await.unwrap();
    lab.apply(&json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "LibvirtHost", "metadata": {"name": "alpha"},
        "spec": {
            "uri": "qemu:///system",
            "virtType": "qemu",
            "storage": [{"storageClass": "local", "pool": "vms"}],
            "networks": [{"name": "default", "type": "network", "source": "default"}],
        },
    }))
    .await
    .unwrap();
    assert!(lab.objects(HOST, "").find("alpha").await.unwrap().is_some());
    let disk = json!({"name": "root", "storageClass": "local"});
    let web = machine(
        "web",
        &json!({"template": "small", "backend": "libvirt", "disks": [disk]}),
    );
    lab.apply_when_admitted(&web).await.unwrap();
    let kubectl = lab.kubectl();
    for command in commands(part) {
        run(&kubectl, &command).await;
    }
    let web = lab.objects(MACHINE, "default").get("web").await.unwrap();
    let display = &web["spec"]["normalized"]["display"];
    assert_eq!(display["passwordSecretRef"]["name"], "web-display", "{web}");
}
