//! The `KubeVirt` object, in which an administrator configures KubeVirt.

use std::sync::atomic::Ordering;

use anyhow::Result;
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::Namespace,
};
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};

use super::{
    Simulator,
    context::Context,
    kinds::{KUBEVIRT, MACHINE},
};
use crate::wait;

/// Name and namespace of the object, as the documentation of KubeVirt has them.
const NAME: &str = "kubevirt";

/// The version that the scenarios imitate.
const VERSION: &str = "v1.9.0";

/// The minor release of KubeVirt 1 in which the gate `VideoConfig` is general.
const VIDEO_IS_GENERAL: u32 = 9;

/// The minor release of KubeVirt 1 from which on the gate `DeclarativeHotplugVolumes` is enabled by itself.
const HOTPLUG_IS_BETA: u32 = 9;

/// The minor release of KubeVirt 1 in which the gate `ExpandDisks` is general.
const EXPANSION_IS_GENERAL: u32 = 8;

/// The gate with which volumes are plugged into running guests, and drives may be empty.
const HOTPLUG: &str = "DeclarativeHotplugVolumes";

/// Name of the policy that refuses what the installed version does not take.
const POLICY: &str = "virt-api-feature-gates";

/// Creates the object with its namespace; a simulator that was started again finds them.
pub(super) async fn create(context: &Context) -> Result<()> {
    let created = |result: kube::Result<()>| match result {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => result,
    };
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let parameters = PostParams::default();
    created(namespaces.create(&parameters, &namespace).await.map(drop))?;
    let object = serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": KUBEVIRT.name,
        "metadata": {"name": NAME, "namespace": NAME},
        "spec": {"workloadUpdateStrategy": {"workloadUpdateMethods": ["LiveMigrate"]}},
    }))?;
    let objects = context.api(&KUBEVIRT, NAME);
    created(objects.create(&parameters, &object).await.map(drop))?;
    let status = json!({"status": {"observedKubeVirtVersion": VERSION, "phase": "Deployed"}});
    let patch = Patch::Merge(status);
    objects
        .patch_status(NAME, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

impl Simulator {
    /// Where the `KubeVirt` object is, which the simulator makes in its first moments.
    async fn installation(&self) -> Result<Api<DynamicObject>> {
        let objects = self.context.api(&KUBEVIRT, NAME);
        wait::until("the KubeVirt object", async || {
            let found = objects.get_opt(NAME).await?;
            Ok(found.map(drop).ok_or("it does not exist"))
        })
        .await?;
        Ok(objects)
    }

    /// An administrator permits devices of nodes: `spec.configuration.permittedHostDevices`.
    pub async fn permit_devices(&self, permitted: &Value) -> Result<()> {
        let configuration = json!({"permittedHostDevices": permitted});
        let patch = Patch::Merge(json!({"spec": {"configuration": configuration}}));
        let objects = self.installation().await?;
        objects.patch(NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// An administrator sets how KubeVirt applies changes to running guests.
    pub async fn set_update_methods(&self, methods: &[&str]) -> Result<()> {
        let strategy = json!({"workloadUpdateStrategy": {"workloadUpdateMethods": methods}});
        let patch = Patch::Merge(json!({ "spec": strategy }));
        let objects = self.installation().await?;
        objects.patch(NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// KubeVirt 1.`minor` is installed, with these feature gates. virt-api refuses a VirtualMachine with what it does not
    /// offer: `validateVideoConfig` in `pkg/virt-api/webhooks/validating-webhook/admitters/vmi-create-admitter.go`, and
    /// empty drives, `validateBootOrder` in `pkg/storage/admitters`.
    pub async fn install(&self, minor: u32, gates: &[&str]) -> Result<()> {
        let client = &self.context.client;
        let (policies, bindings): (
            Api<ValidatingAdmissionPolicy>,
            Api<ValidatingAdmissionPolicyBinding>,
        ) = (Api::all(client.clone()), Api::all(client.clone()));
        if policies.get_opt(POLICY).await?.is_some() {
            let parameters = DeleteParams::default();
            bindings.delete(POLICY, &parameters).await?;
            policies.delete(POLICY, &parameters).await?;
        }
        let refuses_video = minor < VIDEO_IS_GENERAL && !gates.contains(&"VideoConfig");
        let plugs = minor >= HOTPLUG_IS_BETA || gates.contains(&HOTPLUG);
        let expands = minor >= EXPANSION_IS_GENERAL || gates.contains(&"ExpandDisks");
        let refusals = [(refuses_video, video()), (!plugs, empty_drives())];
        let refusals = refusals.into_iter().filter(|(refuses, _)| *refuses);
        let refusals: Vec<Value> = refusals.map(|(_, refusal)| refusal).collect();
        if !refusals.is_empty() {
            let parameters = PostParams::default();
            let [policy, binding] = policy(&refusals);
            let policy = serde_json::from_value(policy)?;
            policies.create(&parameters, &policy).await?;
            let binding = serde_json::from_value(binding)?;
            bindings.create(&parameters, &binding).await?;
        }
        wait::until("the API server to know the policy", async || {
            let video = json!({"video": {"type": "vga"}});
            let drive = json!({"disks": [{"name": "probe", "cdrom": {"bus": "sata"}}]});
            let answers = [self.refuses(&video).await?, self.refuses(&drive).await?];
            let is_known = answers == [refuses_video, !plugs];
            Ok(is_known.then_some(()).ok_or(answers))
        })
        .await?;
        self.context.plugs_volumes.store(plugs, Ordering::Relaxed);
        self.context.expands_disks.store(expands, Ordering::Relaxed);
        let objects = self.installation().await?;
        let developer = json!({"developerConfiguration": {"featureGates": gates}});
        let patch = Patch::Merge(json!({"spec": {"configuration": developer}}));
        let parameters = PatchParams::default();
        objects.patch(NAME, &parameters, &patch).await?;
        let status = json!({"status": {"observedKubeVirtVersion": format!("v1.{minor}.0")}});
        let patch = Patch::Merge(status);
        objects.patch_status(NAME, &parameters, &patch).await?;
        Ok(())
    }

    /// Whether a VirtualMachine with these devices is refused.
    async fn refuses(&self, devices: &Value) -> Result<bool> {
        let devices = json!({"domain": {"devices": devices}});
        let probe = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"generateName": "probe-"},
            "spec": {"runStrategy": "Halted", "template": {"spec": devices}},
        }))?;
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let machines = self.context.api(&MACHINE, "default");
        match machines.create(&parameters, &probe).await {
            Ok(_) => Ok(false),
            Err(kube::Error::Api(status)) if status.message.contains(POLICY) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// Refuses a model of the graphics card.
fn video() -> Value {
    json!({
        "expression": "!has(object.spec.template.spec.domain.devices.video)",
        "message": "Video configuration is specified but the VideoConfig feature gate is not enabled",
    })
}

/// Refuses a drive without a volume.
fn empty_drives() -> Value {
    let spec = "object.spec.template.spec";
    let disks = format!("{spec}.domain.devices.disks");
    let filled = format!("(has({spec}.volumes) && {spec}.volumes.exists(v, v.name == d.name))");
    json!({
        "expression": format!("!has({disks}) || {disks}.all(d, !has(d.cdrom) || {filled})"),
        "message": format!("{HOTPLUG} feature gate not enabled, cannot define an empty CD-ROM disk"),
    })
}

fn policy(refusals: &[Value]) -> [Value; 2] {
    let kind = |kind: &str| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": POLICY},
        })
    };
    let mut policy = kind("ValidatingAdmissionPolicy");
    policy["spec"] = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": ["kubevirt.io"], "apiVersions": ["v1"], "resources": ["virtualmachines"],
            "operations": ["CREATE", "UPDATE"],
        }]},
        "validations": refusals,
    });
    let mut binding = kind("ValidatingAdmissionPolicyBinding");
    binding["spec"] = json!({"policyName": POLICY, "validationActions": ["Deny"]});
    [policy, binding]
}
