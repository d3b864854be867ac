//! How the API server answers: it keeps no rule of this controller, only those of Kubernetes, of CDI's admission, and the
//! policy that protects labelled objects from deletion.

use std::collections::BTreeMap;

use common::names;
use controller_core::api_server::Answer;
use controller_core::objects::Meta;
use hyper::http::header::CONTENT_TYPE;
use hyper::http::{Method, Request};
use kube::client::Body;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::server_side_apply::{conflicts, set};
use super::{FakeCluster, ORPHAN, decode, some_time};
use crate::apply::claim_user::UserKind;

/// Namespace of the shared imports of MachineImages.
pub(super) const IMAGES: &str = "images";

/// Kinds that a policy of the installation does not let anybody delete while they have its label.
const PROTECTED: [&str; 4] = [
    "persistentvolumeclaims",
    "secrets",
    "virtualmachines",
    "datavolumes",
];

/// One request.
pub(super) struct Call {
    method: Method,
    group: String,
    plural: String,
    namespace: String,
    name: Option<String>,
    /// Selectors and other parameters.
    query: BTreeMap<String, String>,
    is_apply: bool,
    is_strategic: bool,
    body: Value,
}

impl Call {
    pub(super) async fn read(request: Request<Body>) -> Self {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let path: Vec<_> = parts.uri.path().trim_matches('/').split('/').collect();
        let (group, rest) = match path.as_slice() {
            ["api", _version, rest @ ..] => ("", rest),
            ["apis", group, _version, rest @ ..] => (*group, rest),
            other => panic!("{other:?} is no path of an object"),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            rest => ("", rest),
        };
        let query = parts.uri.query().unwrap_or_default();
        let query = query.replace("%2F", "/").replace("%3D", "=");
        let query = query.split('&').filter_map(|it| it.split_once('='));
        let kind = parts.headers.get(CONTENT_TYPE);
        Self {
            method: parts.method,
            group: group.to_owned(),
            plural: rest[0].to_owned(),
            namespace: namespace.to_owned(),
            name: rest.get(1).map(|name| (*name).to_owned()),
            query: query.map(|(key, it)| (key.into(), it.into())).collect(),
            is_apply: kind.is_some_and(|kind| kind == "application/apply-patch+yaml"),
            is_strategic: kind.is_some_and(|kind| kind == "application/strategic-merge-patch+json"),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        }
    }

    fn name(&self) -> &str {
        self.name.as_deref().expect("the path names an object")
    }

    /// Whether the selectors of a list select the object.
    fn selects(&self, object: &Value) -> bool {
        let label = self.query.get("labelSelector");
        let labels = &object["metadata"]["labels"];
        let field = self.query.get("fieldSelector");
        label
            .and_then(|label| label.split_once('='))
            .is_none_or(|(key, value)| labels[key] == value)
            && field.is_none_or(|field| {
                let name = field.strip_prefix("metadata.name=");
                object["metadata"]["name"] == name.expect("a selector by name")
            })
    }

    /// The failure of a request about an object.
    fn failed(&self, code: u16, reason: &str, message: &str) -> Answer {
        let name = self
            .name
            .as_deref()
            .or(self.body["metadata"]["name"].as_str());
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "code": code, "reason": reason, "message": message, "details": {"name": name},
        });
        (code, status)
    }

    fn conflict(&self, message: &str) -> Answer {
        self.failed(409, "Conflict", message)
    }
}

impl FakeCluster {
    /// Answers one request.
    pub(super) fn answer(&mut self, call: &Call) -> Answer {
        self.answered(call).unwrap_or_else(|failed| failed)
    }

    fn answered(&mut self, call: &Call) -> Result<Answer, Answer> {
        if call.plural == "customresourcedefinitions" {
            let group = call.name().split_once('.').map(|(_, group)| group);
            let is_defined = group.is_some_and(|group| self.serves(group));
            let found = is_defined.then(|| (200, definition(call.name())));
            return found.ok_or_else(|| call.failed(404, "NotFound", "not found"));
        }
        if !self.serves(&call.group) {
            // An API server that does not know a kind names no object.
            let (code, mut answer) = call.failed(404, "NotFound", "404 page not found");
            answer["details"] = json!({});
            return Err((code, answer));
        }
        let is_failing = |it: &str| self.failing.contains(it);
        if call.method != Method::GET && (is_failing(&call.plural) || is_failing(&call.group)) {
            return Err(call.failed(500, "InternalError", "the API server has failed"));
        }
        if let Some(error) = self.refusal(call) {
            return Err(call.failed(403, "Forbidden", error));
        }
        match (&call.method, &call.name) {
            (&Method::GET, None) => {
                let mut items = self.objects(call, None);
                items.retain(|object| call.selects(object));
                Ok((200, json!({"metadata": {}, "items": items})))
            }
            (&Method::GET, Some(_)) => Ok((200, self.live(call)?)),
            (&Method::POST, None) => self.create(call),
            (&Method::PATCH, Some(_)) => self.patch(call),
            (&Method::DELETE, Some(_)) => self.delete(call),
            (&Method::PUT, Some(_)) if call.group == "subresources.kubevirt.io" => {
                let uid = self.live(call)?["metadata"]["uid"].clone();
                self.resets.push(decode(uid));
                self.changes += 1;
                Ok((200, Value::Null))
            }
            (method, _) => panic!("{method} {} is not served", call.plural),
        }
    }

    /// Why this controller may not read what a request is about, if a test says so.
    fn refusal(&self, call: &Call) -> Option<&str> {
        let selector = call.query.get("labelSelector");
        match call.plural.as_str() {
            _ if call.method != Method::GET => None,
            "secrets" => self.secrets_error.as_deref(),
            "persistentvolumeclaims"
                if selector.is_some_and(|it| it.starts_with(names::LABEL_STATE)) =>
            {
                self.state_claims_error.as_deref()
            }
            _ => None,
        }
    }

    /// Whether the kinds of a group are served. Objects of KubeVirt do not outlive the definitions of their kinds: if there
    /// are any, only its caches are not filled.
    fn serves(&self, group: &str) -> bool {
        let mut others = self.claim_users.iter();
        match group {
            "kubevirt.io" => {
                self.kubevirt
                    || self.vm.is_some()
                    || self.instance.is_some()
                    || others.any(|(kind, _)| *kind != UserKind::Pod)
            }
            _ => true,
        }
    }

    fn create(&mut self, call: &Call) -> Result<Answer, Answer> {
        let name = call.body["metadata"]["name"].as_str().expect("a name");
        if !self.objects(call, Some(name)).is_empty() {
            return Err(call.failed(409, "AlreadyExists", &format!("{name} already exists")));
        }
        let mut made = call.body.clone();
        match call.plural.as_str() {
            "persistentvolumeclaims" => made["status"] = json!({"phase": "Pending"}),
            "datavolumes" if !self.cdi => {
                return Err(call.failed(404, "NotFound", "page not found"));
            }
            "datavolumes" if call.namespace != IMAGES => {
                if self.claims.contains_key(name) {
                    let message = format!("destination PVC {name} already exists");
                    return Err(call.failed(403, "Forbidden", &message));
                }
                self.import_specs.insert(name.to_owned(), made.clone());
            }
            _ => {}
        }
        made["metadata"]["uid"] = self.uid().into();
        Ok((201, self.write(call, name, None, made)))
    }

    fn patch(&mut self, call: &Call) -> Result<Answer, Answer> {
        let given = &call.body["metadata"];
        let live = match self.live(call) {
            Err(_) if call.is_apply && given["uid"].is_null() => {
                let made = self.create(call)?;
                self.applied.insert(uid_of(&made.1), call.body.clone());
                return Ok(made);
            }
            live => live?,
        };
        is_still(call, &live, given)?;
        let mut changed = live.clone();
        if call.is_apply {
            let before = self.applied.get(&uid_of(&live)).unwrap_or(&Value::Null);
            if !call.query.contains_key("force") && conflicts(&live, before, &call.body) {
                return Err(call.conflict("other clients own fields"));
            }
            set(&mut changed, before, &call.body);
            self.applied.insert(uid_of(&live), call.body.clone());
        } else {
            json_patch::merge(&mut changed, &call.body);
            if call.is_strategic {
                let before = &live["metadata"]["ownerReferences"];
                changed["metadata"]["ownerReferences"] = patched_owners(before, given);
            }
        }
        Ok((200, self.write(call, call.name(), Some(live), changed)))
    }

    fn delete(&mut self, call: &Call) -> Result<Answer, Answer> {
        let live = self.live(call)?;
        is_still(call, &live, &call.body["preconditions"])?;
        let mut deleted = live.clone();
        let metadata = &mut deleted["metadata"];
        let is_deleting = !metadata["deletionTimestamp"].is_null();
        let is_protected = metadata["labels"][names::LABEL_DELETION_PROTECTION] == "true";
        if is_protected && !is_deleting && PROTECTED.contains(&call.plural.as_str()) {
            return Err(call.failed(403, "Forbidden", "has the label of the policy"));
        }
        metadata["deletionTimestamp"] = json!(some_time());
        if call.body["propagationPolicy"] == "Orphan" {
            metadata["finalizers"] = json!([ORPHAN]);
        }
        match call.plural.as_str() {
            "persistentvolumeclaims" => {
                self.claims.remove(call.name());
                self.changes += 1;
                return Ok((200, deleted));
            }
            "virtualmachineinstances" if !is_deleting => self.restarted.push(uid_of(&live)),
            _ => {}
        }
        Ok((200, self.write(call, call.name(), Some(live), deleted)))
    }

    /// The objects of the kind and namespace of a request, or only the one of this name.
    fn objects(&self, call: &Call, name: Option<&str>) -> Vec<Value> {
        let others = |kind| {
            let others = self.claim_users.iter().filter(move |(it, object)| {
                *it == kind && name.is_none_or(|name| object["metadata"]["name"] == name)
            });
            others.map(|(_, object)| object.clone())
        };
        match call.plural.as_str() {
            "machines" => {
                let machine = self.machine.iter();
                let object = machine.map(|it| json!({"metadata": it.metadata}));
                object.collect()
            }
            "network-attachment-definitions" => values(self.attachments.values(), name),
            "persistentvolumeclaims" => values(self.claims.values(), name),
            "datavolumes" if call.namespace == IMAGES => values(self.imports.values(), name),
            "datavolumes" => values(self.data_volumes.values(), name),
            "secrets" => {
                let users = self.users_secrets().into_values();
                let users = users.filter(|it| name.is_none_or(|name| it.name() == name));
                let users = users.map(|secret| json!(secret));
                values(&self.secret, name)
                    .into_iter()
                    .chain(users)
                    .collect()
            }
            "nodes" => vec![json!({"metadata": {"name": name}})],
            "events" => vec![],
            "virtualmachines" => {
                let others = others(UserKind::VirtualMachine);
                values(&self.vm, name).into_iter().chain(others).collect()
            }
            "virtualmachineinstances" => {
                let others = others(UserKind::Instance);
                let own = values(&self.instance, name);
                own.into_iter().chain(others).collect()
            }
            "virtualmachineinstancemigrations" => values(&self.migration, name),
            "pods" => others(UserKind::Pod).collect(),
            other => panic!("{other} are not served"),
        }
    }

    /// The object that a request names.
    fn live(&self, call: &Call) -> Result<Value, Answer> {
        let live = self.objects(call, Some(call.name())).pop();
        live.ok_or_else(|| call.failed(404, "NotFound", "not found"))
    }

    /// Stores an object in a new version, unless it is as it was `before`. Returns it.
    fn write(&mut self, call: &Call, name: &str, before: Option<Value>, object: Value) -> Value {
        let mut object = object;
        self.versions += 1;
        object["metadata"]["resourceVersion"] = self.versions.to_string().into();
        self.store(call, name, &object);
        if let Some(before) = before {
            let mut after = self.objects(call, Some(name)).pop().unwrap_or_default();
            let version = &before["metadata"]["resourceVersion"];
            after["metadata"]["resourceVersion"] = version.clone();
            if after == before {
                self.store(call, name, &before);
                return before;
            }
        }
        self.changes += 1;
        object
    }

    fn store(&mut self, call: &Call, name: &str, object: &Value) {
        match call.plural.as_str() {
            "machines" => {
                let machine = self.machine.as_mut().expect("the Machine exists");
                machine.metadata = decode(object["metadata"].clone());
                let finalizers = &mut machine.metadata.finalizers;
                *finalizers = finalizers.take().filter(|it| !it.is_empty());
                if machine.is_deleting() && machine.metadata.finalizers.is_none() {
                    self.machine = None;
                }
            }
            "network-attachment-definitions" => put(&mut self.attachments, name, object),
            "persistentvolumeclaims" => put(&mut self.claims, name, object),
            "datavolumes" if call.namespace == IMAGES => put(&mut self.imports, name, object),
            "datavolumes" => put(&mut self.data_volumes, name, object),
            "secrets" => self.secret = Some(stored(object)),
            "virtualmachines" => self.vm = Some(stored(object)),
            "virtualmachineinstances" => self.instance = Some(stored(object)),
            "virtualmachineinstancemigrations" => self.migration = Some(stored(object)),
            other => panic!("{other} are not written"),
        }
    }
}

/// The owner references after a strategic merge patch, which finds them by uid.
fn patched_owners(before: &Value, patch: &Value) -> Value {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut owners = list(before);
    for patch in list(&patch["ownerReferences"]) {
        owners.retain(|owner| owner["uid"] != patch["uid"]);
        if patch["$patch"] != "delete" {
            owners.push(patch);
        }
    }
    owners.into()
}

/// As the API server checks the uid and the version that a request gives.
fn is_still(call: &Call, live: &Value, given: &Value) -> Result<(), Answer> {
    for key in ["uid", "resourceVersion"] {
        if !given[key].is_null() && given[key] != live["metadata"][key] {
            return Err(call.conflict(&format!("the {key} is another one")));
        }
    }
    Ok(())
}

fn uid_of(object: &Value) -> String {
    decode(object["metadata"]["uid"].clone())
}

fn values<'a, K: Meta + Serialize + 'a>(
    objects: impl IntoIterator<Item = &'a K>,
    name: Option<&str>,
) -> Vec<Value> {
    let objects = objects.into_iter();
    let objects = objects.filter(|object| name.is_none_or(|name| object.name() == name));
    objects.map(|object| json!(object)).collect()
}

fn put<K>(objects: &mut BTreeMap<String, K>, name: &str, object: &Value)
where
    K: Meta + DeserializeOwned,
{
    objects.insert(name.to_owned(), stored(object));
}

/// An object with all of its metadata: the API server stores also what the controller skips.
fn stored<K: Meta + DeserializeOwned>(object: &Value) -> K {
    let mut stored: K = decode(object.clone());
    *stored.meta_mut() = decode(object["metadata"].clone());
    stored
}

/// The definition of a kind, as far as its reader decodes it.
fn definition(name: &str) -> Value {
    let spec =
        json!({"group": "", "names": {"kind": "", "plural": ""}, "scope": "", "versions": []});
    json!({"metadata": {"name": name}, "spec": spec})
}
