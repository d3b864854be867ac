//! The warnings of a deletion.

use common::admission::{ObjectKind, warn_of_deletion};
use serde_json::{Value, json};

use crate::harness::{NAMESPACE, ReviewContext, machine, merge_patch};

/// A stored Machine of this spec, with another status.
fn stored(spec: &Value, status: &Value) -> Value {
    let context = ReviewContext::of(ObjectKind::Machine, None);
    let mut stored = context.admit(&machine(spec)).unwrap().stored;
    merge_patch(&mut stored, &json!({"status": status}));
    stored
}

fn warnings(stored: &Value) -> Vec<String> {
    let findings = warn_of_deletion(NAMESPACE, &stored.to_string());
    assert!(findings.accepted(), "{findings:?}");
    let warnings = findings.warnings.into_iter();
    warnings.map(|warning| warning.text).collect()
}

#[test]
fn each_disk_that_is_destroyed_with_its_machine_is_named_with_its_claim_and_size() {
    let disks = json!([{"name": "data", "size": "10Gi"}, {"name": "kept", "size": "1Gi", "reclaimPolicy": "Retain"}]);
    let spec = json!({"template": "small", "disks": disks});
    assert_eq!(
        warnings(&stored(&spec, &json!({}))),
        [
            "Machine default/web: its deletion destroys disk 'root' (20Gi, PersistentVolumeClaim web-root); reclaimPolicy: Retain keeps it",
            "Machine default/web: its deletion destroys disk 'data' (10Gi, PersistentVolumeClaim web-data); reclaimPolicy: Retain keeps it",
        ]
    );
}

#[test]
fn a_disk_on_libvirt_is_named_with_the_volume_that_its_host_has() {
    let spec = json!({"template": "small", "backend": "libvirt"});
    let volumes =
        json!([{"name": "root", "claimName": "default-web-1.root.qcow2", "phase": "Bound"}]);
    let bound = stored(&spec, &json!({"host": "hv1", "volumes": volumes}));
    assert_eq!(
        warnings(&bound),
        [
            "Machine default/web: its deletion destroys disk 'root' (20Gi, volume default-web-1.root.qcow2 on host hv1); reclaimPolicy: Retain keeps it"
        ]
    );
    assert_eq!(
        warnings(&stored(&spec, &json!({}))),
        [""; 0],
        "nothing was made"
    );
}

#[test]
fn of_many_disks_the_first_are_named_and_the_others_counted() {
    // The template has one, too.
    for (own, more) in [(8, "1 more disk"), (20, "13 more disks")] {
        let disks: Vec<_> = (0..own)
            .map(|number| json!({"name": format!("d{number}"), "size": "1Gi"}))
            .collect();
        let spec = json!({"template": "small", "disks": disks});
        let all = warnings(&stored(&spec, &json!({})));
        assert_eq!(all.len(), 9);
        let last = format!("Machine default/web: its deletion destroys {more}");
        assert_eq!(all[8], last);
        let total: usize = all.iter().map(String::len).sum();
        assert!(total < 4096, "{total}");
    }
}

#[test]
fn only_the_state_that_a_machine_keeps_is_named() {
    let efi = json!({"firmware": {"bootloader": {"efi": true, "persistent": true}}});
    let tpm = json!({"devices": {"tpm": {"persistent": true}}});
    let mut both = efi.clone();
    merge_patch(&mut both, &tpm);
    for (domain, state) in [
        (json!({}), None),
        (efi, Some("its EFI variables")),
        (tpm, Some("the content of its TPM")),
        (both, Some("its EFI variables and the content of its TPM")),
    ] {
        let spec = json!({"template": "small", "domain": domain});
        let all = warnings(&stored(&spec, &json!({})));
        let named = state.map(|state| {
            format!("Machine default/web: its deletion destroys {state}; a disk with reclaimPolicy: Retain keeps this, too")
        });
        assert_eq!(all.get(1), named.as_ref(), "{all:?}");
    }
}

#[test]
fn the_state_stays_with_a_disk_that_left_the_spec() {
    let domain = json!({"devices": {"tpm": {"persistent": true}}});
    let spec = json!({"template": "small", "backend": "libvirt", "domain": domain});
    let kept = json!([{"name": "data", "claimName": "default-web-1.data.qcow2", "phase": "Kept"}]);
    assert_eq!(warnings(&stored(&spec, &json!({}))).len(), 1);
    assert_eq!(
        warnings(&stored(&spec, &json!({"keptVolumes": kept}))),
        [""; 0]
    );
}

/// libvirt makes a file for the EFI variables of a domain that does not say otherwise.
#[test]
fn efi_variables_that_a_block_leaves_to_libvirt_are_named() {
    let efi = json!({"firmware": {"bootloader": {"efi": true}}});
    for (backend, number) in [("libvirt", 1), ("kubevirt", 0)] {
        let spec = json!({"template": "small", "backend": backend, "domain": efi});
        let mut stored = stored(&spec, &json!({}));
        let mut block = stored["spec"]["normalized"].take();
        block["version"] = json!(1);
        block["firmware"] = json!({"type": "efi"});
        block["disks"] = json!([]);
        stored["spec"]["normalized"] = block;
        assert_eq!(warnings(&stored).len(), number, "{stored}");
    }
}

#[test]
fn an_object_that_cannot_be_read_is_deleted_without_a_warning() {
    for text in [
        "",
        "null",
        "{}",
        r#"{"metadata": 7}"#,
        r#"{"metadata": {"name": "web"}, "spec": {"normalized": {"disks": 7}}}"#,
    ] {
        let findings = warn_of_deletion(NAMESPACE, text);
        assert_eq!(findings.warnings, [], "{text}");
        assert!(findings.accepted());
    }
}
