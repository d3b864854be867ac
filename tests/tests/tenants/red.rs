//! The attacker: a user with the role `edit` of the namespace `red`, and nothing else.

use std::sync::Mutex;

use lab::{
    Kubectl, Lab, Output,
    objects::{CLAIM, MACHINE, Objects, SECRET, namespace},
    wait,
};
use serde_json::{Value, json};

use crate::{blue::WORDS, tenants::Tenants};

/// The name of the user.
pub(crate) const USER: &str = "mallory";

/// Waits and reads are the lab's; everything that is an attack is a command of this user.
pub(crate) struct Red {
    kubectl: Kubectl,
    /// What the user has sent in this attack: it may be repeated in the answers.
    sent: Mutex<String>,
}

impl Red {
    /// Creates both namespaces, and binds the role as an administrator does.
    pub(crate) async fn new(lab: &Lab) -> Self {
        for tenant in ["red", "blue"] {
            let namespace = namespace(tenant, &json!({"tenant": tenant}));
            lab.apply(&namespace).await.unwrap();
        }
        lab.apply(&binding("editors", "ClusterRole", "edit"))
            .await
            .unwrap();
        let red = Self {
            kubectl: lab.kubectl(),
            sent: Mutex::default(),
        };
        let may = ["auth", "can-i", "create", "machines.vitistack.io"];
        wait::until("the roles to be aggregated", async || {
            let answer = red.run(&may).await;
            Ok((answer.code == 0).then_some(()).ok_or(answer))
        })
        .await
        .unwrap();
        red
    }

    /// Another attack begins.
    pub(crate) fn begin(&self) {
        self.sent.lock().unwrap().clear();
    }

    /// Reads what red can see after an attack, and deletes all that is red's.
    pub(crate) async fn end(&self, tenants: &Tenants) {
        for kinds in ["machines,persistentvolumeclaims,secrets", "events"] {
            self.run(&["get", kinds, "-o", "yaml"]).await.ok().unwrap();
        }
        for kind in ["machines", "persistentvolumeclaims", "secrets"] {
            let delete = ["delete", kind, "--all", "--wait=false"];
            self.run(&delete).await.ok().unwrap();
        }
        for kind in [MACHINE, CLAIM, SECRET] {
            let objects = tenants.lab.objects(kind, "red");
            wait::until("red to have nothing", async || {
                tenants.switch_off("red-").await;
                let left = objects.list().await?;
                let states = left
                    .iter()
                    .map(|it| format!("{} {}", it["metadata"], it["status"]));
                Ok(if left.is_empty() {
                    Ok(())
                } else {
                    Err(states.collect::<Vec<_>>())
                })
            })
            .await
            .unwrap();
        }
        // Users may only read events. Those of this attack may repeat what was sent in it.
        let delete = ["delete", "events", "--all", "-n", "red"];
        self.kubectl.run(&delete).await.unwrap().ok().unwrap();
    }

    /// Runs kubectl as the user, in the namespace red unless the arguments name another.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(arguments, "").await
    }

    async fn run_with(&self, arguments: &[&str], input: &str) -> Output {
        let user = format!("--as={USER}");
        let mut all = vec![user.as_str()];
        // An object has a namespace of its own.
        if input.is_empty() {
            all.push("--namespace=red");
        }
        all.extend(arguments);
        let output = self.kubectl.run_with(&all, input).await.unwrap();
        let sent = {
            let mut sent = self.sent.lock().unwrap();
            sent.push_str(&arguments.join(" "));
            sent.push_str(input);
            sent.clone()
        };
        let shown = output.to_string();
        for word in WORDS {
            assert!(
                !shown.contains(word) || sent.contains(word),
                "red learns of '{word}' from {arguments:?}: {shown}"
            );
        }
        output
    }

    /// Applies an object as the user.
    pub(crate) async fn apply(&self, object: &Value) -> Output {
        self.run_with(&["apply", "-f", "-"], &object.to_string())
            .await
    }

    /// Runs a command with an object as its input.
    pub(crate) async fn send(&self, arguments: &[&str], object: &Value) -> Output {
        self.run_with(arguments, &object.to_string()).await
    }

    /// Applies an object that has to be accepted.
    pub(crate) async fn create(&self, object: &Value) {
        self.apply(object).await.ok().unwrap();
    }

    /// Applies an object that has to be refused with this text.
    pub(crate) async fn refused(&self, object: &Value, why: &str) -> String {
        let text = self.apply(object).await.refused().unwrap();
        assert!(text.contains(why), "expected {why}: {text}");
        text
    }

    /// Runs a command that RBAC has to refuse.
    pub(crate) async fn forbidden(&self, arguments: &[&str]) {
        let text = self.run(arguments).await.refused().unwrap();
        let is_rbac =
            text.contains("(Forbidden)") && text.contains(&format!("User \"{USER}\" cannot"));
        assert!(is_rbac, "{arguments:?}: {text}");
    }

    /// The Machines of red.
    pub(crate) fn machines(lab: &Lab) -> Objects {
        lab.objects(MACHINE, "red")
    }
}

/// The user's binding to a role in the namespace red.
pub(crate) fn binding(name: &str, kind: &str, role: &str) -> Value {
    let group = "rbac.authorization.k8s.io";
    json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": "red"},
        "roleRef": {"apiGroup": group, "kind": kind, "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
    })
}
