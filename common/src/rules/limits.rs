//! Lengths of lists and texts. Runs first: what is longer is told once and not walked.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::api::machine::MachineSpec;
use crate::api::schema::{
    CDROMS_MAX, DISKS_MAX, LABELS_MAX, NETWORKS_MAX, TEXT_MAX, USER_DATA_MAX,
};
use crate::code::Code;
use crate::violation::{Findings, Kind, Violation};

/// Classes of devices to boot from; a longer order repeats one.
const BOOT_ORDER_MAX: usize = 3;

/// Rules [`Code::TooMany`] and [`Code::TooLong`]. Lists that are too long are cut to their bound,
/// so that the other rules judge the items a machine could have.
pub(crate) fn enforce(spec: &mut MachineSpec, findings: &mut Findings) {
    items("disks", spec.disks.as_mut(), DISKS_MAX, findings);
    items("networks", spec.networks.as_mut(), NETWORKS_MAX, findings);
    items("cdroms", spec.cdroms.as_mut(), CDROMS_MAX, findings);
    items(
        "bootOrder",
        spec.boot_order.as_mut(),
        BOOT_ORDER_MAX,
        findings,
    );
    count(
        "nodeSelector",
        spec.node_selector.as_ref().map_or(0, BTreeMap::len),
        LABELS_MAX,
        findings,
    );
    if let Some(cloud_init) = &spec.cloud_init {
        let meta_data = cloud_init.meta_data.as_ref();
        count(
            "cloudInit.metaData",
            meta_data.map_or(0, BTreeMap::len),
            LABELS_MAX,
            findings,
        );
        length(
            "spec.cloudInit.userData",
            cloud_init.user_data.as_deref(),
            USER_DATA_MAX,
            findings,
        );
        length(
            "spec.cloudInit.networkData",
            cloud_init.network_data.as_deref(),
            USER_DATA_MAX,
            findings,
        );
        for (key, value) in meta_data.into_iter().flatten().take(LABELS_MAX) {
            length(
                format_args!("spec.cloudInit.metaData[{key}]"),
                Some(value),
                TEXT_MAX,
                findings,
            );
        }
    }
}

fn items<T>(field: &str, list: Option<&mut Vec<T>>, max: usize, findings: &mut Findings) {
    if let Some(list) = list {
        count(field, list.len(), max, findings);
        list.truncate(max);
    }
}

fn count(field: &str, count: usize, max: usize, findings: &mut Findings) {
    if count > max {
        let detail = format!("has {count} items; at most {max} are allowed");
        findings.deny(Violation::new(
            format_args!("spec.{field}"),
            Code::TooMany,
            Kind::TooMany,
            detail,
        ));
    }
}

/// Rule [`Code::TooLong`] for one text, counted in characters as the schema counts.
pub(crate) fn length(place: impl Display, text: Option<&str>, max: usize, findings: &mut Findings) {
    let characters = text.map_or(0, |text| text.chars().count());
    if characters > max {
        let detail = format!("has {characters} characters; at most {max} are allowed");
        findings.deny(Violation::new(place, Code::TooLong, Kind::TooLong, detail));
    }
}
