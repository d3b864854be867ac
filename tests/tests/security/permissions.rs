//! The roles of `manifests/install`, compared with the requests of the programs.

use std::fs;

use lab::{
    Binary,
    audit::{Event, LogPosition},
    install, paths,
};
use serde_json::Value;

use crate::environment::Environment;

/// Permissions that no request uses: an admission plugin of the API server checks them for requests that write an owner
/// reference (`OwnerReferencesPermissionEnforcement`, which is enabled in all tests).
const OF_ADMISSION: [&str; 2] = [
    "update vitistack.io/machines/finalizers",
    "update vitistack.io/networkconfigurations/finalizers",
];

/// The permission that CDI asks for before it clones a claim of another namespace.
const OF_CDI: [&str; 1] = ["create cdi.kubevirt.io/datavolumes/source"];

/// Permissions that are used only with a LibvirtHost, which this test does not have.
const OF_LIBVIRT: [&str; 2] = [
    "get vitistack.io/libvirthosts",
    "patch vitistack.io/libvirthosts/status",
];

/// The permission that is used only if a guest has ended while no controller ran. The suite `foreign_changes` stops the
/// controller for that; with the same role, it would fail without the permission.
const OF_RECOVERY: [&str; 1] = ["get /nodes"];

/// The permission that is used only for a pod that a node does not start within ten seconds. The suite `causes` has one;
/// with the same role, it would fail without the permission.
const OF_CAUSES: [&str; 1] = ["list /events"];

/// One verb on one resource, for objects of some names or of all.
struct Grant {
    verb: String,
    group: String,
    resource: String,
    names: Vec<String>,
}

impl Grant {
    fn is_used_by(&self, event: &Event) -> bool {
        let resource = match event.subresource.as_str() {
            "" => event.resource.clone(),
            sub => format!("{}/{sub}", event.resource),
        };
        // A server-side apply that creates an object needs both verbs.
        let made = event.verb == "patch" && event.code == 201 && self.verb == "create";
        (event.verb == self.verb || made)
            && event.group == self.group
            && resource == self.resource
            && (self.names.is_empty() || self.names.contains(&event.name))
    }

    fn text(&self) -> String {
        format!("{} {}/{}", self.verb, self.group, self.resource)
    }
}

fn texts(value: &Value) -> Vec<String> {
    let texts = value.as_array().into_iter().flatten();
    texts.map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// The permissions that a file of roles grants.
fn granted(file: &str) -> Vec<Grant> {
    let path = paths::repository().join("manifests/install").join(file);
    let objects = install::parse(&fs::read_to_string(path).unwrap()).unwrap();
    let rules = objects
        .iter()
        .filter_map(|object| object["rules"].as_array());
    let mut grants = Vec::new();
    for rule in rules.flatten() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                grants.extend(texts(&rule["verbs"]).into_iter().map(|verb| Grant {
                    verb,
                    group: group.clone(),
                    resource: resource.clone(),
                    names: texts(&rule["resourceNames"]),
                }));
            }
        }
    }
    grants
}

/// Every granted verb was used, and no request was forbidden.
pub(crate) async fn assert_used(env: &Environment, start: LogPosition) {
    let events = env.lab.requests_since(start).await.unwrap();
    let mut idle = Vec::new();
    for (file, binary) in [
        ("controller-rbac.yaml", Binary::Controller),
        ("webhook-rbac.yaml", Binary::Webhook),
    ] {
        let user = binary.user();
        let own: Vec<_> = events.iter().filter(|event| event.user == user).collect();
        let forbidden: Vec<_> = own.iter().filter(|event| event.code == 403).collect();
        assert!(forbidden.is_empty(), "{forbidden:#?}");
        let grants = granted(file);
        assert!(grants.len() > 10, "{file}");
        for grant in &grants {
            assert!(![&grant.verb, &grant.group, &grant.resource].contains(&&"*".to_owned()));
            if !own.iter().any(|event| grant.is_used_by(event)) {
                idle.push(format!("{file}: {}", grant.text()));
            }
        }
    }
    let expected = OF_ADMISSION.iter().chain(&OF_LIBVIRT).chain(&OF_RECOVERY);
    let expected = expected.chain(&OF_CDI).chain(&OF_CAUSES);
    idle.retain(|it| !expected.clone().any(|name| it.ends_with(name)));
    assert!(idle.is_empty(), "granted and never used: {idle:#?}");
}
