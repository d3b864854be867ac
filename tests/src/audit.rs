//! Requests to the API server, read from its audit log.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use anyhow::Result;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// A request that was answered, or a watch that was started.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The user of the request: `admin`, `kubevirt-simulator`, `system:serviceaccount:…`.
    pub user: String,
    /// The pod that a service account's token was made for; empty for other users.
    pub pod: String,
    /// The id of that token.
    pub token: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, …
    pub verb: String,
    /// The API group; empty for the core one.
    pub group: String,
    /// The plural name of the resource, such as `machines`.
    pub resource: String,
    /// The subresource, such as `status`; empty for the object itself.
    pub subresource: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Empty for lists and watches.
    pub name: String,
    /// The HTTP status of the response.
    pub code: u64,
    /// Time of the response.
    pub answered: Option<Timestamp>,
    /// Whether it was a dry run.
    pub dry_run: bool,
    /// The audit annotations, such as the codes of a webhook.
    pub annotations: Value,
    /// The request body, for writes to our kinds and KubeVirt's; null for others.
    pub content: Value,
}

impl Event {
    /// Whether it was a write that succeeded, dry runs excluded.
    pub fn wrote(&self) -> bool {
        let writes = ["create", "update", "patch", "delete", "deletecollection"];
        writes.contains(&self.verb.as_str()) && self.code < 400 && !self.dry_run
    }

    /// Whether the object is a Lease, which leader election renews periodically.
    pub fn is_lease(&self) -> bool {
        self.resource == "leases"
    }

    /// Resource and object, such as `machines default/web`.
    pub fn object(&self) -> String {
        format!("{} {}/{}", self.resource, self.namespace, self.name)
    }

    /// Verb, resource and object, such as `patch machines/status default/web`.
    pub fn summary(&self) -> String {
        let sub = if self.subresource.is_empty() {
            String::new()
        } else {
            format!("/{}", self.subresource)
        };
        format!(
            "{} {}{sub} {}/{}",
            self.verb, self.resource, self.namespace, self.name
        )
    }

    fn parse(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |pointer: &str| {
            let found = value.pointer(pointer).and_then(Value::as_str);
            found.unwrap_or_default().to_owned()
        };
        let verb = text("/verb");
        // A watch may last forever: it counts when it starts, every other request when it was answered.
        let counted = if verb == "watch" {
            "ResponseStarted"
        } else {
            "ResponseComplete"
        };
        if text("/stage") != counted {
            return None;
        }
        Some(Self {
            user: text("/user/username"),
            pod: text("/user/extra/authentication.kubernetes.io~1pod-name/0"),
            token: text("/user/extra/authentication.kubernetes.io~1credential-id/0"),
            group: text("/objectRef/apiGroup"),
            resource: text("/objectRef/resource"),
            subresource: text("/objectRef/subresource"),
            namespace: text("/objectRef/namespace"),
            name: text("/objectRef/name"),
            code: value
                .pointer("/responseStatus/code")
                .and_then(Value::as_u64)
                .unwrap_or_default(),
            answered: text("/stageTimestamp").parse().ok(),
            dry_run: text("/requestURI").contains("dryRun=All"),
            annotations: value.get("annotations").cloned().unwrap_or_default(),
            content: value.get("requestObject").cloned().unwrap_or_default(),
            verb,
        })
    }
}

/// A position in the log, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition(pub(crate) u64);

/// The text after a position.
pub(crate) fn text_since(log: &Path, since: LogPosition) -> Result<String> {
    let mut file = File::open(log)?;
    file.seek(SeekFrom::Start(since.0))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) fn parse(text: &str) -> Vec<Event> {
    text.lines().filter_map(Event::parse).collect()
}

/// Calls `look` with each request after a position. Reads line by line, because the log of a long run does not fit in
/// memory.
pub(crate) fn each_since(
    log: &Path,
    since: LogPosition,
    mut look: impl FnMut(Event),
) -> Result<()> {
    let mut file = File::open(log)?;
    file.seek(SeekFrom::Start(since.0))?;
    for line in BufReader::new(file).lines() {
        if let Some(event) = Event::parse(&line?) {
            look(event);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verb: &str, stage: &str, code: u16) -> String {
        format!(
            r#"{{"stage":"{stage}","verb":"{verb}","user":{{"username":"u"}},
            "requestURI":"/x","objectRef":{{"resource":"machines","namespace":"n","name":"m",
            "apiGroup":"vitistack.io","subresource":"status"}},"responseStatus":{{"code":{code}}}}}"#
        )
        .replace('\n', "")
    }

    #[test]
    fn each_request_is_counted_once_and_failed_ones_are_no_writes() {
        let text = [
            line("watch", "ResponseStarted", 200),
            line("watch", "ResponseComplete", 200),
            line("patch", "ResponseComplete", 200),
            line("patch", "ResponseComplete", 409),
        ]
        .join("\n");
        let events = parse(&text);
        let verbs: Vec<_> = events.iter().map(|event| event.verb.as_str()).collect();
        assert_eq!(verbs, ["watch", "patch", "patch"]);
        assert_eq!(events.iter().filter(|event| event.wrote()).count(), 1);
        assert_eq!(events[1].summary(), "patch machines/status n/m");
    }
}
