//! The requests that a proxy restricts and counts.

use super::Write;

/// Kinds that the controller watches in the whole cluster; a proxy with a namespace restricts them to it.
const SCOPED: [&str; 9] = [
    "machines",
    "networkconfigurations",
    "virtualmachines",
    "virtualmachineinstances",
    "virtualmachineinstancemigrations",
    "persistentvolumeclaims",
    "secrets",
    "network-attachment-definitions",
    "datavolumes",
];

/// What of its client's requests a proxy restricts and counts.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The only namespace whose objects are listed and watched; with it the MachineImage of its name and the
    /// MachineAddresses of its Machines. `None`: all.
    pub namespace: Option<String>,
    /// The kinds, in the plural, whose writes are counted. Empty: all.
    pub counted: &'static [&'static str],
}

impl Scope {
    /// The path of a list or watch of the whole cluster, restricted to the namespace.
    pub(super) fn path(&self, path: &str) -> String {
        match (path.rsplit_once('/'), &self.namespace) {
            (Some((before, kind)), Some(namespace))
                if SCOPED.contains(&kind) && !before.contains("/namespaces/") =>
            {
                format!("{before}/namespaces/{namespace}/{kind}")
            }
            _ => path.to_owned(),
        }
    }

    /// The query of a list or watch of a kind without namespaces, restricted to what belongs to the namespace.
    pub(super) fn query(&self, path: &str, query: &str) -> String {
        let field = match path.rsplit('/').next() {
            Some("machineimages") => "metadata.name",
            Some("machineaddresses") => "spec.machineRef.namespace",
            _ => return query.to_owned(),
        };
        self.namespace.as_ref().map_or_else(
            || query.to_owned(),
            |namespace| format!("{query}&fieldSelector={field}%3D{namespace}"),
        )
    }

    pub(super) fn counts(&self, write: &Write) -> bool {
        let mut parts = write.path.split('/');
        self.counted.is_empty() || parts.any(|part| self.counted.contains(&part))
    }
}
