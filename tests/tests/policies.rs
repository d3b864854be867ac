//! MachinePolicies at admission: what they refuse in the namespaces that they select, and what a stricter policy
//! means for a Machine that exists.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use lab::{
    Kubectl, Lab, Output, ProgramUnderTest, install,
    objects::{MACHINE, POLICY, namespace},
    pages::{Quotes, blocks, page, section},
    wait,
};
use serde_json::{Value, json};

mod machines;

/// A namespace that the policies select.
const TENANT: &str = "tenant";
/// A namespace that they do not select.
const FREE: &str = "free";

async fn lab() -> (Lab, ProgramUnderTest) {
    let (lab, webhook) = machines::lab(&[]).await;
    for (name, labels) in [(TENANT, json!({"tenancy": "shared"})), (FREE, json!({}))] {
        lab.apply(&namespace(name, &labels)).await.unwrap();
    }
    (lab, webhook)
}

/// A policy for the tenants' namespaces.
fn policy(name: &str, rules: &Value) -> Value {
    let mut policy = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "MachinePolicy",
        "metadata": {"name": name},
        "spec": {"namespaceSelector": {"matchLabels": {"tenancy": "shared"}}},
    });
    for (field, value) in rules.as_object().unwrap() {
        policy["spec"][field] = value.clone();
    }
    policy
}

/// A Machine in a namespace; every line of `spec` is one of its fields.
fn machine(namespace: &str, name: &str, spec: &str) -> String {
    let namespaced = format!("namespace: {namespace}");
    machines::machine(name, spec).replace("namespace: default", &namespaced)
}

fn network(namespace: &str, name: &str, spec: &Value) -> String {
    let network = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "NetworkConfiguration",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    });
    network.to_string()
}

async fn apply(kubectl: &Kubectl, object: impl ToString) -> Output {
    let output = kubectl.run_with(&["apply", "-f", "-"], object.to_string());
    output.await.unwrap()
}

/// Applies a policy, and waits until the webhook refuses this Machine because of it.
async fn apply_until_refused(lab: &Lab, policy: &Value, probe: &str) {
    let kubectl = lab.kubectl();
    apply(&kubectl, policy).await.ok().unwrap();
    let dry = ["create", "--dry-run=server", "-f", "-"];
    wait::until("the webhook to have the policy", async || {
        let output = kubectl.run_with(&dry, probe).await?;
        Ok(if output.code == 1 {
            Ok(())
        } else {
            Err(output)
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_policy_refuses_in_its_namespaces_what_it_does_not_allow_and_names_what_it_allows() {
    let (lab, _webhook) = lab().await;
    let kubectl = lab.kubectl();
    let page = page("policies").unwrap();
    let (beginning, _) = page.split_once("\n## ").unwrap();
    let mut quotes = Quotes::of(beginning);
    let policy = install::parse(&blocks(&page, "yaml")[0]).unwrap().remove(0);
    let prod = json!({"bridge": "br-prod", "vlan": 150});
    apply(&kubectl, network(TENANT, "prod", &prod))
        .await
        .ok()
        .unwrap();
    let far = json!({"bridge": "br-prod", "vlan": 250});
    apply(&kubectl, network(TENANT, "far", &far))
        .await
        .ok()
        .unwrap();
    let probe = machine(TENANT, "probe", "template: medium");
    apply_until_refused(&lab, &policy, &probe).await;

    let faulty = "\
template: huge
resources: {cpu: {cores: 32}, memory: {size: 128Gi}}
disks:
- {name: data, size: 3Ti, storageClass: replicated}
- {name: copy, size: 1Gi, image: {persistentVolumeClaim: golden}}
- {name: os, size: 1Gi, image: {url: 'https://images.example.org/os/debian.qcow2'}}
- {name: more, size: 1Gi}
networks: [{name: eth0}, {name: eth1, networkName: far}, {name: eth2, networkName: prod}]";
    let template = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "MachineTemplate",
        "metadata": {"name": "huge"},
        "spec": {"resources": {"memory": {"size": "1Gi"}}},
    });
    apply(&kubectl, template).await.ok().unwrap();
    let refused = apply(&kubectl, machine(TENANT, "web", faulty)).await;
    let refused = refused.refused().unwrap();
    let lines = refused.split_inclusive('\n');
    let violations: String = lines
        .filter(|line| !line.starts_with("Warning: "))
        .collect();
    quotes.produced(&violations).unwrap();
    let refused = apply(
        &kubectl,
        machine(TENANT, "web", "backend: libvirt\ntemplate: small"),
    )
    .await;
    let refused = refused.refused().unwrap();
    assert!(
        refused.contains("spec.backend: Forbidden: \"libvirt\": policy 'tenants' allows kubevirt [BackendNotAllowed]"),
        "{refused}"
    );
    let vlan = json!({"bridge": "br-prod", "vlan": 400});
    let refused = apply(&kubectl, network(TENANT, "more", &vlan)).await;
    quotes.produced(&refused.refused().unwrap()).unwrap();
    quotes.finish().unwrap();

    // What is allowed is accepted, and the policy does not hold elsewhere.
    let good = "template: small\nnetworks: [{name: eth0, networkName: prod}]";
    apply(&kubectl, machine(TENANT, "web", good))
        .await
        .ok()
        .unwrap();
    let elsewhere = "template: huge\nresources: {cpu: {cores: 32}}";
    apply(&kubectl, machine(FREE, "web", elsewhere))
        .await
        .ok()
        .unwrap();
    apply(&kubectl, network(FREE, "more", &vlan))
        .await
        .ok()
        .unwrap();
}

#[tokio::test]
async fn a_stricter_policy_lets_a_machine_stay_and_shrink_and_refuses_what_makes_it_worse() {
    let (lab, _webhook) = lab().await;
    let kubectl = lab.kubectl();
    let large = |more: &str| {
        let spec = format!("template: large\nresources: {{cpu: {{cores: {more}");
        machine(TENANT, "web", &spec)
    };
    apply(&kubectl, large("8}}")).await.ok().unwrap();
    let rules = json!({"templates": {"allow": ["small"]}, "limits": {"cpu": 4}});
    let probe = machine(TENANT, "probe", "template: large");
    apply_until_refused(&lab, &policy("tenants", &rules), &probe).await;

    let stopped = apply(&kubectl, large("8}}\npowerState: Stopped")).await;
    assert_eq!(stopped.code, 0, "{stopped}");
    let page = page("policies").unwrap();
    let quotes = Quotes::of(section(&page, "Machines that exist").unwrap());
    let mut lines = stopped.stderr.lines();
    assert!(lines.any(|line| quotes.contain(line)), "{stopped}");
    let shrunk = apply(&kubectl, large("6}}\npowerState: Stopped")).await;
    assert_eq!(shrunk.code, 0, "{shrunk}");
    let grown = apply(&kubectl, large("7}}\npowerState: Stopped")).await;
    let grown = grown.refused().unwrap();
    assert!(
        grown.contains("spec.resources.cpu.cores: Forbidden: 7: policy 'tenants' allows at most 4 vCPUs [LimitExceeded]"),
        "{grown}"
    );
    let machines = lab.objects(MACHINE, TENANT);
    let stored = machines.get("web").await.unwrap();
    assert_eq!(stored["spec"]["normalized"]["cpu"]["cores"], 6);

    // Without the policy the Machine may grow again.
    lab.objects(POLICY, "").delete("tenants").await.unwrap();
    wait::until("the webhook to have seen the deletion", async || {
        let output = apply(&kubectl, large("7}}\npowerState: Stopped")).await;
        Ok(output.ok())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_policy_holds_for_the_first_machine_of_a_new_namespace() {
    let (lab, _webhook) = lab().await;
    let kubectl = lab.kubectl();
    let rules = json!({"templates": {"allow": ["small"]}});
    let probe = machine(TENANT, "probe", "template: large");
    apply_until_refused(&lab, &policy("tenants", &rules), &probe).await;
    // Created in one request each, without waiting for the webhook's watch.
    for index in 0..5 {
        let name = format!("new-{index}");
        let both = format!(
            "{}\n---\n{}",
            namespace(&name, &json!({"tenancy": "shared"})),
            machine(&name, "web", "template: large")
        );
        let refused = apply(&kubectl, both).await;
        assert_eq!(
            refused.refused().unwrap(),
            "The Machine \"web\" is invalid: spec.template: Forbidden: \"large\": policy 'tenants' allows small \
             [TemplateNotAllowed]\n"
        );
    }
}

#[tokio::test]
async fn a_faulty_policy_is_refused_with_every_fault() {
    let (lab, _webhook) = lab().await;
    let kubectl = lab.kubectl();
    let mut faulty = policy(
        "tenants",
        &json!({
            "templates": {"allow": ["x".repeat(1024)]},
            "networks": {"bridges": [{"name": "br0", "vlans": ["200-100"]}]},
            "images": {"sources": ["images.example.com"]},
            "limits": {"memory": "64GB"},
        }),
    );
    faulty["spec"]["namespaceSelector"] = Value::Null;
    let refused = apply(&kubectl, &faulty).await;
    let pattern = format!("{}…", "x".repeat(63));
    assert_eq!(
        refused.refused().unwrap(),
        format!(
            "The MachinePolicy \"tenants\" is invalid: \n\
             * spec.networks.bridges[0].vlans[0]: Invalid value: \"200-100\": must be a tag from 1 to 4094 such as '300', or a range such as '100-199' [InvalidVlanRange]\n\
             * spec.namespaceSelector: Required value: select namespaces by their labels, or write {{}} for all of them [NamespaceSelectorRequired]\n\
             * spec.templates.allow[0]: Invalid value: \"{pattern}\": must be a pattern of 1 to 63 bytes: lower-case letters, digits, '-', '.' and '*' [InvalidPattern]\n\
             * spec.images.sources[0]: Invalid value: \"images.example.com\": must be https://, http:// or docker:// and a host, at most 1024 characters without blanks [InvalidUrlPrefix]\n\
             * spec.limits.memory: Invalid value: \"64GB\": has the unknown unit \"GB\"; use a number and a unit such as '64G' [InvalidQuantity]\n"
        )
    );
}

#[tokio::test]
async fn machines_created_in_one_apply_do_not_exceed_the_quota_together() {
    let (lab, _webhook) = lab().await;
    let kubectl = lab.kubectl();
    let rules = json!({"quota": {"cpu": 4, "memory": "100Gi"}});
    let probe = machine(
        TENANT,
        "probe",
        "template: small\nresources: {cpu: {cores: 5}}",
    );
    apply_until_refused(&lab, &policy("tenants", &rules), &probe).await;
    let names = ["a", "b", "c", "d", "e", "f"];
    let all = names.map(|name| machine(TENANT, name, "template: small"));
    let output = apply(&kubectl, all.join("---\n")).await;
    assert_eq!(output.stdout.lines().count(), 4, "{output}");
    let refused = output.refused().unwrap();
    let fault = "spec.template: Forbidden: 1: policy 'tenants' gives the namespace 4 vCPUs, and its other Machines have 4 (resources.cpu.cores of the template) [QuotaExceeded]";
    assert_eq!(refused.matches(fault).count(), 2, "{refused}");
    let page = page("policies").unwrap();
    assert!(Quotes::of(section(&page, "Quota").unwrap()).contain(&refused));

    // A stopped Machine counts, a deleted one does not.
    let stopped = "template: small\npowerState: Stopped";
    apply(&kubectl, machine(TENANT, "a", stopped))
        .await
        .ok()
        .unwrap();
    let another = machine(TENANT, "e", "template: small");
    assert!(
        apply(&kubectl, &another)
            .await
            .refused()
            .unwrap()
            .contains("[QuotaExceeded]")
    );
    lab.objects(MACHINE, TENANT).delete("a").await.unwrap();
    wait::until("the webhook to have seen the deletion", async || {
        let output = apply(&kubectl, &another).await;
        Ok(output.ok())
    })
    .await
    .unwrap();
}
