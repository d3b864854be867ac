//! What a rule is: its family, its function, the codes that it reports, and the reviews in which it
//! runs.
//!
//! The rules of a kind run in the order of [`ALL`](super::ALL). Each function gets everything that has
//! been read so far, and adds its part of the result and its findings:
//!
//! ```text
//! Machine   Decode ─▶ Migration ─▶ Name ─▶ Template ─▶ Image ─▶ Lookup ─▶ Policy ─▶ Part ─▶ Update ─▶ Creation or Effect
//!           JSON      annotations of name    the pinned  classes of the    block    refused   warnings
//!                     moves                                         namespace
//! template  Decode ─▶ Name ───────────────────────────────────▶ Part ─▶ Content
//! network   Decode ─▶ Name ─▶ Network ─▶ NetworkPolicy
//! others    Decode ─▶ Name ─▶ Host, MachinePolicy or MachineImage
//! ```
//! `Deletion` runs after `Update`, for a Machine that is being deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::cloud_init::schema::CloudInitSchema;
use super::libvirthosts::intent::HostIntent;
use crate::api::choice::{
    Backend, BootDevice, EvictionStrategy, MachineType, OsFamily, PowerState, ReclaimPolicy,
    WatchdogAction,
};
use crate::api::kind::ObjectKind;
use crate::api::lenient::or_default;
use crate::api::machine::{Affinity, MachineSpec, OpenObject, Probes, TopologySpreadConstraint};
use crate::api::machine_image::{MachineImageSpec, PinnedImage};
use crate::api::machine_policy::MachinePolicySpec;
use crate::api::network::NetworkConfigurationSpec;
use crate::api::normalized::{
    ExistingDisk, Firmware, Normalized, NormalizedCdrom, NormalizedConsole, NormalizedCpu,
    NormalizedDisk, NormalizedDisplay, NormalizedFeatures, NormalizedGroup, NormalizedHardware,
    NormalizedMemory, NormalizedNetwork, NormalizedToleration, NormalizedTpm, TemplatePin,
};
use crate::bounds::VCPUS_MAX;
use crate::catalog::{Catalog, KubevirtRow, MachineName, Policy};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Intent, Merged, Pins, TemplateChoice};
use crate::violation::Findings;

/// All kinds.
pub(super) const EVERY_KIND: &[ObjectKind] = &[
    ObjectKind::Machine,
    ObjectKind::MachineTemplate,
    ObjectKind::NetworkConfiguration,
    ObjectKind::LibvirtHost,
    ObjectKind::MachinePolicy,
    ObjectKind::MachineImage,
];
/// Machines alone.
pub(super) const MACHINES: &[ObjectKind] = &[ObjectKind::Machine];
/// Machines, and the fields of a Machine in a template.
pub(super) const MACHINES_AND_TEMPLATES: &[ObjectKind] =
    &[ObjectKind::Machine, ObjectKind::MachineTemplate];
/// Templates alone.
pub(super) const TEMPLATES: &[ObjectKind] = &[ObjectKind::MachineTemplate];
/// NetworkConfigurations alone.
pub(super) const NETWORKS: &[ObjectKind] = &[ObjectKind::NetworkConfiguration];
/// Kinds whose name becomes a label's value or part of other names.
pub(super) const NAMED: &[ObjectKind] = &[
    ObjectKind::Machine,
    ObjectKind::MachineTemplate,
    ObjectKind::NetworkConfiguration,
];
/// LibvirtHosts alone.
pub(super) const HOSTS: &[ObjectKind] = &[ObjectKind::LibvirtHost];

/// MachinePolicies alone.
pub(super) const POLICIES: &[ObjectKind] = &[ObjectKind::MachinePolicy];

/// MachineImages alone.
pub(super) const IMAGES: &[ObjectKind] = &[ObjectKind::MachineImage];

/// A rule, or several that read the same value.
#[derive(Debug)]
pub struct Rule {
    /// Variant of [`Check`] and name of the function.
    pub function: &'static str,
    /// Codes that it reports.
    pub codes: &'static [Code],
    /// Kinds of the objects that it reads.
    pub kinds: &'static [ObjectKind],
    /// Reviews in which it runs.
    pub stage: RuleStage,
    pub(crate) check: Check,
}

impl Rule {
    /// Whether it runs in a review of this kind, of a creation or an update.
    pub(super) fn runs(&self, kind: ObjectKind, is_update: bool) -> bool {
        let is_in_stage = match self.stage {
            RuleStage::Always => true,
            RuleStage::Create => !is_update,
            RuleStage::Update => is_update,
        };
        is_in_stage && self.kinds.contains(&kind)
    }
}

/// Reviews in which a rule runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleStage {
    /// Creations and updates.
    Always,
    /// Creations only: what it reads cannot change.
    Create,
    /// Updates only: it compares with the stored object.
    Update,
}

/// The function of a rule, by what it reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Check {
    /// Runs while the JSON is decoded; `admission::decode` and [`limits`](super::limits) report it.
    Decode,
    /// No function of its own: readers of a single value report it, which other rules call.
    Value,
    /// Reads the name of the object.
    Name(fn(&ObjectName<'_>, &mut Findings)),
    /// Reads the annotations that move a guest.
    Migration(fn(&MigrationRequest<'_>, &mut Findings)),
    /// Reads which template a Machine names, and looks it up.
    Template(fn(&TemplateRequest<'_>, &mut TemplateChoice, &mut Findings)),
    /// Reads which MachineImages a Machine names, and looks them up. Adds those that were found, by name of the disk or
    /// CD-ROM.
    Image(fn(&ImageRequest<'_>, &mut BTreeMap<String, PinnedImage>, &mut Findings)),
    /// Compares a Machine with the catalog and with the stored object. Adds the storage classes that
    /// the spec leaves open, by name of disk or CD-ROM.
    Lookup(fn(&Lookup<'_>, &mut BTreeMap<String, String>, &mut Findings)),
    /// Warns of a new Machine that is accepted.
    Creation(fn(&Lookup<'_>, &mut Findings)),
    /// Compares a Machine with one policy of its namespace.
    Policy(fn(&PolicySubject<'_>, &Policy, &mut Findings)),
    /// Reads the merged spec and the pinned values. It may write a part of the block, and read the parts of the entries
    /// above it.
    Part(fn(&Subject<'_>, &mut Parts, &mut Findings)),
    /// Compares the fields of a template with the catalog.
    Content(fn(&Merged<'_>, &dyn Catalog, &Settings, &mut Findings)),
    /// Refuses a change of a Machine.
    Update(fn(&Update<'_>, &dyn Catalog, &mut Findings)),
    /// Reads what is left of the violations of a change of a Machine that is being deleted.
    Deletion(fn(&mut Findings)),
    /// Warns of a change that is accepted: `Update`, the new block.
    Effect(fn(&Update<'_>, &Normalized, &mut Findings)),
    /// Reads a NetworkConfiguration and the stored one.
    Network(fn(&NetworkConfigurationSpec, Option<&NetworkConfigurationSpec>, &mut Findings)),
    /// Compares a NetworkConfiguration with one policy of its namespace.
    NetworkPolicy(fn(&NetworkConfigurationSpec, &Policy, &mut Findings)),
    /// Reads a LibvirtHost and the stored one.
    Host(fn(&HostIntent, Option<&HostIntent>, &mut Findings)),
    /// Reads a MachinePolicy.
    MachinePolicy(fn(&MachinePolicySpec, &mut Findings)),
    /// Reads a MachineImage.
    MachineImage(fn(&MachineImageSpec, &mut Findings)),
    /// Compares the block that was sent with the one that is computed; `admission::machine` reports it.
    Block,
}

/// Settings of the webhook that rules depend on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether a missing `NetworkConfiguration` is refused.
    pub missing_networks: MissingNetworks,
    /// Backend of Machines that name none.
    pub default_backend: Backend,
    /// Reclaim policy of disks that name none.
    pub default_reclaim_policy: ReclaimPolicy,
    /// Most vCPUs of a Machine, at most [`VCPUS_MAX`].
    pub max_vcpus: u32,
    /// A schema for user data in addition to the built-in one.
    pub cloud_init_schema: Option<Arc<CloudInitSchema>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            missing_networks: MissingNetworks::Warn,
            default_backend: Backend::Kubevirt,
            default_reclaim_policy: ReclaimPolicy::Delete,
            max_vcpus: VCPUS_MAX,
            cloud_init_schema: None,
        }
    }
}

/// Whether a missing `NetworkConfiguration` is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingNetworks {
    /// Accepted with a warning; the controller waits until the object exists.
    #[default]
    Warn,
    /// Refused.
    Deny,
}

/// The name of an object under review.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectName<'a> {
    pub(crate) kind: ObjectKind,
    /// Empty until the API server has generated it.
    pub(crate) name: &'a str,
    /// `metadata.generateName`, if the API server generates the name from it.
    pub(crate) generate_name: Option<&'a str>,
}

/// The template that a Machine names, and the content that it has so far.
#[derive(Clone, Copy)]
pub(crate) struct TemplateRequest<'a> {
    pub(crate) intent: &'a Intent<'a>,
    /// Text of the refresh annotation.
    pub(crate) refresh: Option<&'a str>,
    pub(crate) known: KnownTemplate<'a>,
    pub(crate) catalog: &'a dyn Catalog,
}

/// A Machine, merged with its template, and the MachineImages that it has so far.
#[derive(Clone, Copy)]
pub(crate) struct ImageRequest<'a> {
    pub(crate) merged: &'a Merged<'a>,
    /// By name of the disk or CD-ROM.
    pub(crate) kept: &'a BTreeMap<String, PinnedImage>,
    pub(crate) catalog: &'a dyn Catalog,
}

/// The content of a template that a Machine already has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KnownTemplate<'a> {
    /// It has none.
    Nothing,
    /// The pin of the stored object.
    Stored(&'a TemplatePin),
    /// The pin of a block that came with a new object: a Machine restored from a backup.
    Restored(&'a TemplatePin),
}

/// A Machine, merged with its template, before its block is computed.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<'a> {
    pub(crate) merged: &'a Merged<'a>,
    /// Name of the Machine; empty while `generateName` has not been expanded.
    pub(crate) machine: MachineName<'a>,
    /// The backend that the spec names, else the one of the stored block, else the default one.
    pub(crate) backend: Backend,
    /// The backend of the stored block; `None` on a creation.
    pub(crate) stored_backend: Option<Backend>,
    /// The stored block, if it was computed for the stored spec.
    pub(crate) stored: Option<&'a Normalized>,
    /// Whether the object is created.
    pub(crate) is_new: bool,
    /// Whether it is created with its block, as from a backup: its volumes may have content.
    pub(crate) is_restored: bool,
    /// The libvirt host that the Machine is bound to.
    pub(crate) bound_host: Option<&'a str>,
    pub(crate) catalog: &'a dyn Catalog,
    pub(crate) settings: &'a Settings,
}

impl Lookup<'_> {
    /// Whether the rules of libvirt apply. A move to libvirt is refused as such, and not checked further.
    pub(crate) fn is_on_libvirt(&self) -> bool {
        let moved = self
            .stored_backend
            .is_some_and(|stored| stored != self.backend);
        self.backend == Backend::Libvirt && !moved
    }
}

/// The annotations that move the guest of a Machine, and what is known of that guest.
#[derive(Clone)]
pub(crate) struct MigrationRequest<'a> {
    /// Whether a migration is requested that was not requested before.
    pub(crate) is_new: bool,
    /// The node or LibvirtHost to move to, if it is another one than before.
    pub(crate) new_target: Option<&'a str>,
    /// The node or LibvirtHost to move to.
    pub(crate) target: Option<&'a str>,
    /// The backend of the stored Machine, else that of the new one.
    pub(crate) backend: Backend,
    /// The node that the guest runs on, as far as the controller has reported.
    pub(crate) node: Option<&'a str>,
    /// Why KubeVirt cannot move the guest: message of the condition LiveMigratable, if it is False.
    pub(crate) obstacle: Option<&'a str>,
    /// Namespace of the Machine.
    pub(crate) namespace: &'a str,
    /// The block of the stored Machine, if it matches its spec.
    pub(crate) block: Option<&'a Normalized>,
    /// The power state that the new spec names.
    pub(crate) power_state: Option<PowerState>,
    /// The LibvirtHost that the Machine is bound to.
    pub(crate) host: Option<&'a str>,
    /// Disks that left the spec and whose volumes are kept on that host.
    pub(crate) kept_disks: Vec<String>,
    pub(crate) catalog: &'a dyn Catalog,
}

/// A Machine in a namespace that policies hold for.
#[derive(Clone, Copy)]
pub(crate) struct PolicySubject<'a> {
    pub(crate) merged: &'a Merged<'a>,
    /// Name of the template that the Machine names, if the template exists, and the path that names it.
    pub(crate) template: Option<(&'a str, FieldPath)>,
    /// The backend that the spec names, else the pinned one.
    pub(crate) backend: Backend,
    pub(crate) machine: MachineName<'a>,
    /// What the spec resolves to beyond itself.
    pub(crate) pins: &'a Pins,
    /// The stored block, if it matches the stored spec. What it has beyond a limit is not refused again.
    pub(crate) stored: Option<&'a Normalized>,
    pub(crate) catalog: &'a dyn Catalog,
}

/// A merged Machine with everything that its block depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) merged: &'a Merged<'a>,
    pub(crate) pins: &'a Pins,
    /// The backend that the spec names, else the pinned one.
    pub(crate) backend: Backend,
    /// Most vCPUs that an administrator allows.
    pub(crate) max_vcpus: u32,
}

/// An update of a Machine, as far as its new side can be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update<'a> {
    /// Name of the Machine.
    pub(crate) machine: MachineName<'a>,
    /// The stored block.
    pub(crate) old: &'a Normalized,
    /// The stored spec.
    pub(crate) old_spec: &'a MachineSpec,
    /// The new spec, merged with its template.
    pub(crate) merged: &'a Merged<'a>,
    /// What the new spec resolves to beyond itself.
    pub(crate) pins: &'a Pins,
    /// The backend of both.
    pub(crate) backend: Backend,
    /// Names of the disks whose image is not yet in their volume.
    pub(crate) incomplete_imports: &'a [String],
    /// Names of the disks whose volume exists, as far as the controller has reported.
    pub(crate) made_volumes: &'a [String],
    /// What the annotation `discard-state` of the new object names; empty without it.
    pub(crate) discarded_state: &'a str,
    /// Whether the machine runs and is to keep running.
    pub(crate) runs: bool,
    /// Whether the controller has bound it to a libvirt host, which it keeps while it is off.
    pub(crate) is_bound: bool,
    /// What the installed KubeVirt offers; `None` on libvirt, and if it is not known.
    pub(crate) kubevirt: Option<&'a KubevirtRow>,
    /// What the controller has reported of the running guest.
    pub(crate) guest: GuestReport<'a>,
}

/// A field of the block that the running guest has with another value.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PendingValue {
    /// Path of the field in the block, as the controller wrote it.
    pub(crate) field: String,
    /// The value of the running guest.
    pub(crate) current: String,
    /// What brings the change into effect.
    #[serde(deserialize_with = "or_default")]
    pub(crate) action: String,
}

/// What the controller has reported of a guest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GuestReport<'a> {
    /// The changes that it does not have yet.
    pub(crate) pending: &'a [PendingValue],
    /// Whether KubeVirt can migrate it, or why not: the condition LiveMigratable. `None`: not reported.
    pub(crate) migration: Option<Result<(), &'a str>>,
    /// Whether it has to be restarted for an earlier change: KubeVirt then applies no other one.
    pub(crate) waits_for_restart: bool,
}

/// The typed parts of a block. A part is `None` until its rule has run, and if it has a violation.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) backend: Option<Backend>,
    pub(crate) power_state: Option<PowerState>,
    pub(crate) cpu: Option<NormalizedCpu>,
    pub(crate) memory: Option<NormalizedMemory>,
    pub(crate) hardware: NormalizedHardware,
    pub(crate) disks: Option<Vec<NormalizedDisk>>,
    pub(crate) existing_disks: Option<Vec<ExistingDisk>>,
    pub(crate) networks: Option<Vec<NormalizedNetwork>>,
    pub(crate) cdroms: Option<Vec<NormalizedCdrom>>,
    pub(crate) boot_order: Option<Vec<BootDevice>>,
    pub(crate) features: Option<NormalizedFeatures>,
    pub(crate) machine_type: Option<MachineType>,
    pub(crate) firmware: Option<Firmware>,
    /// Also `None` for a Machine that says nothing about its screen.
    pub(crate) display: Option<NormalizedDisplay>,
    /// Also `None` for a Machine that says nothing about its console.
    pub(crate) console: Option<NormalizedConsole>,
    /// Also `None` for a Machine whose operating system is not known.
    pub(crate) os: Option<OsFamily>,
    pub(crate) tpm: Option<NormalizedTpm>,
    pub(crate) timezone: Option<String>,
    pub(crate) grace_period: Option<u32>,
    /// Also `None` for a Machine in no group.
    pub(crate) group: Option<NormalizedGroup>,
    pub(crate) tolerations: Vec<NormalizedToleration>,
    pub(crate) affinity: Option<Affinity>,
    pub(crate) spread: Vec<TopologySpreadConstraint>,
    /// Also `None` for a Machine that overrides nothing.
    pub(crate) overrides: Option<OpenObject>,
    pub(crate) probes: Probes,
    /// Also `None` for a Machine without one.
    pub(crate) watchdog: Option<WatchdogAction>,
    /// Also `None` for a Machine that names none.
    pub(crate) priority_class: Option<String>,
    /// Also `None` for a Machine that says nothing about it.
    pub(crate) eviction_strategy: Option<EvictionStrategy>,
}

/// Declares the rules of a file and the codes that they report.
///
/// ```text
/// rules! {
///     "family" Check::Part(function), on MACHINES, Always {
///         Refuse CodeName = "What the rule finds."
///             because "What would happen without the rule."
///             fix "What the author does about it."
///             crd All scope Taken, // `scope` is optional: see `Scope` in code.rs
///     }
///     "family" Check::Lookup(other), on MACHINES, Update, and [CodeOfAnotherRule] {}
/// }
/// ```
macro_rules! rules {
    ($(
        $family:literal $check:expr, on $kinds:ident, $stage:ident $(, and [$($also:ident),+])? {
            $(
                $severity:ident $code:ident = $what:literal because $why:literal fix $fix:literal
                    crd $crd:ident $(scope $scope:ident)?,
            )*
        }
    )+) => {
        #[expect(non_upper_case_globals, reason = "a code is written as messages show it")]
        impl $crate::code::Code {
            $($(
                #[doc = $what]
                pub const $code: Self = Self::new(&$crate::code::Entry {
                    name: stringify!($code),
                    family: $family,
                    severity: $crate::code::Severity::$severity,
                    crd: $crate::code::CrdCoverage::$crd,
                    scope: [$($crate::code::Scope::$scope,)? $crate::code::Scope::Value][0],
                    what: $what,
                    why: $why,
                    fix: $fix,
                });
            )*)+
        }

        /// The rules of this file.
        pub(in crate::rules) const RULES: &[$crate::rules::rule::Rule] = &[$(
            $crate::rules::rule::Rule {
                function: stringify!($check),
                codes: &[
                    $($crate::code::Code::$code,)*
                    $($($crate::code::Code::$also,)+)?
                ],
                kinds: $crate::rules::rule::$kinds,
                stage: $crate::rules::rule::RuleStage::$stage,
                check: $check,
            },
        )+];
    };
}
pub(super) use rules;
