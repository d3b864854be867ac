//! Two tenants of one cluster, `red` and `blue`, which share a libvirt host: what red tries to do to blue with the
//! roles that the installation ships.
//!
//! ```text
//! red, a user with the role `edit` of the namespace red
//!   │ attack: kubectl, as that user
//!   ▼
//! API server, webhook, controller, libvirtd, simulator of KubeVirt
//!   │
//!   ├─▶ blue has the same objects, domains and volumes as before    nothing is changed or read
//!   ├─▶ no answer, object or event of red names what is blue's      nothing is disclosed
//!   └─▶ a new Machine of blue still gets its place                  no tenant is starved
//! ```
//! One control plane and one libvirtd serve all attacks, one after the other; each cleans up after itself. Attacks that
//! have a whole test elsewhere, with every variant, are here in their shortest form.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod api;
mod blocks;
mod blue;
mod host;
mod images;
mod kubevirt;
mod red;
mod tenants;

use std::panic::AssertUnwindSafe;

use futures::{FutureExt as _, future::LocalBoxFuture};

use tenants::Tenants;

/// An attack of red; it panics if the attack succeeds.
type Attack = for<'a> fn(&'a Tenants) -> LocalBoxFuture<'a, ()>;

/// Attacks with their names.
macro_rules! attacks {
    ($($module:ident::$attack:ident,)*) => {
        &[$((stringify!($attack), |tenants| Box::pin($module::$attack(tenants)))),*]
    };
}

/// Attacks at the API server and on KubeVirt.
const AT_THE_API: &[(&str, Attack)] = attacks![
    api::reading_and_writing_what_is_of_another_namespace,
    api::writing_a_network,
    api::writing_what_belongs_to_no_namespace,
    api::references_that_name_another_namespace,
    api::suggestions_for_misspelt_names,
    api::taking_the_address_of_another_namespace,
    blocks::forging_the_block,
    blocks::forging_the_block_of_a_paused_machine_under_deletion,
    blocks::sending_a_deletion_timestamp,
    kubevirt::naming_the_secret_of_another_namespace,
    kubevirt::copying_the_claim_of_another_namespace,
    kubevirt::claims_with_the_marks_of_another_machine,
    kubevirt::removing_the_label_of_a_protected_claim,
    kubevirt::more_than_the_quota,
];

/// Attacks on the shared libvirt host.
const AT_THE_HOST: &[(&str, Attack)] = attacks![
    images::naming_the_disk_of_another_machine_as_an_image,
    images::an_image_that_names_a_file_of_the_host,
    images::an_image_from_a_private_address,
    images::a_server_that_never_answers,
    host::a_machine_of_the_same_name,
    host::growing_beyond_the_host,
    host::releasing_the_kept_volume_of_another_namespace,
    host::forging_the_status,
    host::a_header_in_a_raw_disk,
];

#[tokio::test]
async fn one_tenant_reads_changes_starves_and_learns_nothing_of_another() {
    let tenants = Tenants::new().await;
    let before = tenants.blue.state(&tenants.lab).await;
    let mut attacks = AT_THE_API.to_vec();
    match &tenants.missing {
        None => attacks.extend(AT_THE_HOST),
        Some(missing) => lab::skip(missing),
    }
    let mut succeeded = Vec::new();
    for (name, attack) in attacks {
        println!("{name}");
        tenants.red.begin();
        let outcome = AssertUnwindSafe(attack(&tenants)).catch_unwind().await;
        tenants.red.end(&tenants).await;
        let changes = before.changes(&tenants.blue.state(&tenants.lab).await);
        if outcome.is_err() || !changes.is_empty() {
            succeeded.push((name, outcome.is_err(), changes));
        }
    }
    assert!(
        succeeded.is_empty(),
        "attacks, whether each panicked (see above), and what it changed of blue: {succeeded:#?}"
    );
}
