//! A Machine that runs, of which field after field is changed: what admission announces of a change is what happens.
//!
//! ```text
//! change of one field ──kubectl apply──▶ refused, or warnings
//!                                            │ the table of update effects: which of these
//!                                            ▼
//!                        status.pendingChanges: exactly what was announced, never more, until the restart; what was
//!                        not announced reaches the running guest, and is gone from the list
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use common::api::choice::Backend;
use common::rules::update::{Effect, Field};
use lab::{
    Kubectl, Lab,
    objects::{MACHINE, Objects, is_reported},
    wait,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// All changes.
#[derive(Deserialize)]
pub(crate) struct Cases {
    pub(crate) refused: Vec<Change>,
    pub(crate) accepted: Vec<Change>,
}

/// A Machine, and the changes that are made of it.
#[derive(Deserialize)]
pub(crate) struct OtherMachine {
    pub(crate) spec: Value,
    #[serde(flatten)]
    pub(crate) cases: Cases,
}

impl OtherMachine {
    /// Reads Machines by name, which are in YAML.
    pub(crate) fn read(text: &str) -> BTreeMap<String, Self> {
        serde_saphyr::from_str(text).unwrap()
    }
}

/// A NetworkConfiguration with addresses in this subnet.
pub(crate) fn network(name: &str, bridge: &str, cidr: &str) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "NetworkConfiguration",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"bridge": bridge, "ipam": {"subnets": [{"cidr": cidr}]}},
    })
}

/// The template `with-scratch`, of whose disks a Machine can remove `scratch`.
pub(crate) fn template(disks: &Value) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachineTemplate",
        "metadata": {"name": "with-scratch"}, "spec": {"disks": disks},
    })
}

/// A Secret with data for cloud-init and for Windows Setup.
pub(crate) fn secret(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": "default"},
        "stringData": {
            "userdata": format!("#cloud-config\nhostname: {name}\n"),
            "networkdata": format!("version: 2\n# {name}\n"),
            "autounattend.xml": format!("<unattend>{name}</unattend>"),
        },
    })
}

/// A change of one field.
#[derive(Deserialize)]
pub(crate) struct Change {
    /// Name of the row.
    field: String,
    /// JSON pointer below `spec`; `-` at its end is a new item of a list.
    place: String,
    /// The new value; null takes the item out of its list.
    value: Value,
    /// The fields of `status.pendingChanges` while a running guest does not have the change. One with `-` in front is not
    /// pending any more.
    #[serde(default)]
    pending: Vec<String>,
}

impl Cases {
    /// Reads the changes of a backend, which are in YAML.
    pub(crate) fn read(text: &str) -> Self {
        serde_saphyr::from_str(text).unwrap()
    }
}

impl Change {
    /// The row of the table.
    pub(crate) fn field(&self) -> Field {
        let mut rows = Field::ALL.iter();
        *rows.find(|row| format!("{row:?}") == self.field).unwrap()
    }

    /// Makes the change in a spec.
    pub(crate) fn set(&self, spec: &mut Value) {
        let (parent, last) = self.place.rsplit_once('/').unwrap();
        let mut at = spec;
        for part in parent.split('/').skip(1) {
            at = match part.parse::<usize>() {
                Ok(index) => &mut at[index],
                Err(_) => &mut at[part],
            };
        }
        match at {
            Value::Array(items) if last == "-" => items.push(self.value.clone()),
            Value::Array(items) if self.value.is_null() => {
                items.remove(last.parse().unwrap());
            }
            at if last == "-" => *at = json!([self.value]),
            at => at[last] = self.value.clone(),
        }
    }
}

/// How long the status may take to show all changes after a restart: a guest gives back the memory above its size once
/// it has booted, and one in QEMU's emulation boots for minutes beside others.
const BOOT_LIMIT: Duration = Duration::from_mins(10);

/// A Machine that runs, and what was announced of it.
pub(crate) struct Subject {
    backend: Backend,
    kubectl: Kubectl,
    machines: Objects,
    /// As it was applied last.
    machine: Value,
    /// The fields of `status.pendingChanges` that are to be there, by what admission has announced so far.
    announced: BTreeSet<String>,
    /// The rows of the table of which a change was tried.
    tried: Vec<Field>,
    faults: Vec<String>,
}

impl Subject {
    /// A Machine that runs as it was applied.
    pub(crate) fn new(backend: Backend, lab: &Lab, machine: Value) -> Self {
        Self {
            backend,
            kubectl: lab.kubectl(),
            machines: lab.objects(MACHINE, "default"),
            machine,
            announced: BTreeSet::new(),
            tried: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Makes all changes of a Machine that runs, up to the restart after them.
    pub(crate) async fn changed(
        backend: Backend,
        lab: &Lab,
        machine: Value,
        cases: &Cases,
    ) -> Self {
        let mut subject = Self::new(backend, lab, machine);
        subject.tries(cases).await;
        subject.has_everything_after_a_restart().await;
        subject
    }

    fn name(&self) -> &str {
        self.machine["metadata"]["name"].as_str().unwrap()
    }

    /// Applies a change that is accepted, and waits until exactly what was announced is pending.
    async fn accepts(&mut self, change: &Change) {
        let field = change.field();
        self.tried.push(field);
        let before = self.machine.clone();
        let effect = field.effect(self.backend);
        change.set(&mut self.machine["spec"]);
        let answer = self.kubectl.apply(&self.machine).await.unwrap();
        if answer.code != 0 {
            self.machine = before;
            return self.fault(field, faults(&answer.stderr));
        }
        let codes = ["[RestartRequired]", "[NewInstanceRequired]"];
        let lines = answer.stderr.lines();
        let warnings = lines.filter(|line| codes.iter().any(|code| line.ends_with(code)));
        let warnings: Vec<_> = warnings.collect();
        let is_announced = warnings.iter().any(|line| is_of(field, line));
        let waits = match effect {
            Effect::Restart | Effect::NewInstance | Effect::NextMigrationOrRestart => true,
            Effect::Live | Effect::NextMove | Effect::Nothing | Effect::Grow => false,
            // It depends on the guest: admission has to say which.
            Effect::HotPlugOrRestart | Effect::LiveMigrationOrRestart => is_announced,
            Effect::RefusedWhileRunning | Effect::Refused | Effect::Resolved => {
                return self.fault(field, effect.describe());
            }
        };
        if is_announced != waits || !waits && !warnings.is_empty() {
            self.fault(field, &format!("{}, but: {warnings:?}", effect.describe()));
        }
        for name in change.pending.iter().filter(|_| waits) {
            match name.strip_prefix('-') {
                Some(gone) => self.announced.remove(gone),
                None => self.announced.insert(name.clone()),
            };
        }
        self.compare_pending(field, wait::LIMIT).await;
    }

    /// Sends a change that is refused, which changes nothing.
    async fn refuses(&mut self, change: &Change) {
        let field = change.field();
        self.tried.push(field);
        let effect = field.effect(self.backend);
        if ![Effect::Refused, Effect::RefusedWhileRunning].contains(&effect) {
            self.fault(field, effect.describe());
        }
        let mut machine = self.machine.clone();
        change.set(&mut machine["spec"]);
        let answer = self.kubectl.apply(&machine).await.unwrap();
        if answer.code == 0 || !answer.stderr.lines().any(|line| is_of(field, line)) {
            self.fault(field, faults(&answer.stderr));
        }
        self.compare_pending(field, wait::LIMIT).await;
    }

    fn fault(&mut self, field: Field, what: &str) {
        self.faults.push(format!("{field:?}: {what}"));
    }

    /// Waits until exactly the announced changes are pending: those on their way into the running guest have arrived there.
    /// What is pending instead is a fault, and expected from then on.
    async fn compare_pending(&mut self, field: Field, limit: Duration) {
        let (mut seen, mut last) = (BTreeSet::new(), Value::Null);
        let waited = wait::until_within(limit, "the announced changes", async || {
            let machine = self.machines.get(self.name()).await?;
            seen = pending(&machine);
            let is_done = is_reported(&machine)
                && machine["status"]["phase"] == "Running"
                && seen == self.announced;
            last = machine["status"].clone();
            Ok(is_done.then_some(()).ok_or(()))
        });
        if waited.await.is_err() {
            let missing: Vec<_> = self.announced.difference(&seen).collect();
            let more: Vec<_> = seen.difference(&self.announced).collect();
            let what = format!("not pending: {missing:?}, pending and not announced: {more:?}");
            self.fault(field, &format!("{what}, {last}"));
            self.announced = seen;
        }
    }

    /// Tries all changes, the refused ones first.
    pub(crate) async fn tries(&mut self, cases: &Cases) {
        for change in &cases.refused {
            self.refuses(change).await;
        }
        for change in &cases.accepted {
            self.accepts(change).await;
        }
    }

    /// Adds a label, and an annotation that a policy carries on KubeVirt: only the status announces what they do.
    pub(crate) async fn labels_and_annotates(&mut self, annotation: &str) {
        for (field, verb, text) in [
            (Field::Labels, "label", "team=storage"),
            (Field::Annotations, "annotate", annotation),
        ] {
            self.tried.push(field);
            let add = [verb, "machine", self.name(), text];
            self.kubectl.run(&add).await.unwrap().ok().unwrap();
            if field.effect(self.backend) == Effect::Restart {
                self.announced.insert(field.path().to_owned());
            }
            self.compare_pending(field, wait::LIMIT).await;
        }
    }

    /// The guest is stopped and started: it has everything then.
    pub(crate) async fn has_everything_after_a_restart(&mut self) {
        for power in ["Stopped", "Running"] {
            self.machine["spec"]["powerState"] = power.into();
            let answer = self.kubectl.apply(&self.machine).await.unwrap();
            answer.ok().unwrap();
            let what = format!("to be {power}");
            let is_there =
                |machine: &Value| is_reported(machine) && machine["status"]["phase"] == power;
            self.machines
                .until(self.name(), &what, is_there)
                .await
                .unwrap();
        }
        self.announced.clear();
        self.tried.push(Field::PowerState);
        self.compare_pending(Field::PowerState, BOOT_LIMIT).await;
    }

    /// What was tried with another Machine, and its faults.
    pub(crate) fn include(&mut self, other: Self) {
        let name = other.name().to_owned();
        self.tried.extend(other.tried);
        let faults = other.faults.into_iter();
        self.faults
            .extend(faults.map(|fault| format!("{name}: {fault}")));
    }

    /// Every row of the table was tried without a fault, apart from these, each with the reason.
    pub(crate) fn assert_all_but(mut self, others: &[(Field, &str)]) {
        for field in Field::ALL {
            let is_other = others.iter().any(|(other, _)| other == field);
            if self.tried.contains(field) == is_other {
                self.fault(*field, "was not tried, or is listed as one that cannot be");
            }
        }
        assert!(self.faults.is_empty(), "{:#?}", self.faults);
    }
}

/// The fields of all changes that the running guest does not have yet.
fn pending(machine: &Value) -> BTreeSet<String> {
    let pending = machine["status"]["pendingChanges"].as_array();
    let fields = pending.into_iter().flatten();
    let fields = fields.filter_map(|change| change["field"].as_str());
    fields.map(str::to_owned).collect()
}

/// What a refusal says after the object that kubectl repeats.
fn faults(refusal: &str) -> &str {
    refusal
        .rsplit_once("denied the request")
        .map_or(refusal, |(_, faults)| faults)
}

/// Whether a line of an answer names the field.
fn is_of(field: Field, line: &str) -> bool {
    let mut path = String::new();
    let text = line
        .trim()
        .trim_start_matches("Warning: ")
        .trim_start_matches("* ");
    let mut within = false;
    for letter in text.chars().take_while(|letter| *letter != ':') {
        match letter {
            '[' => {
                within = true;
                path.push_str("[]");
            }
            ']' => within = false,
            _ if within => {}
            _ => path.push(letter),
        }
    }
    let path = path.strip_prefix("spec.").unwrap_or(&path);
    let field = field.path();
    let below = |long: &str, short: &str| {
        long.strip_prefix(short)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    // An item of a list that comes or goes is named by the list.
    let is_item = field.ends_with("[].name") || field.ends_with("[].remove");
    below(path, field) || is_item && field.starts_with(path)
}
