//! What a Machine needs of the hypervisor: machine type, firmware, TPM, CPU model, huge pages.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::api::choice::{Choice as _, HugepageSize, MachineType, MachineTypeName};
use crate::catalog::{HardwareNeed, HostRow, Need};
use crate::code::Code;
use crate::normalize::Merged;
use crate::rules::{firmware, form, hardware, state};
use crate::violation::{Findings, Kind, Violation};
use crate::words::{did_you_mean, name_list, nearest_first};

use super::requirement::Requirement;

/// What a Machine requests. A value that does not exist is reported as such.
pub(super) fn requirements<'a>(merged: &Merged<'a>) -> impl Iterator<Item = Requirement<'a>> {
    let kind = firmware::machine_type_name(merged);
    let name = kind
        .value
        .map_or(Some(MachineTypeName::PcQ35), MachineTypeName::parse);
    let machine_type = name.map(|name| Requirement {
        need: Need::Hardware(HardwareNeed::MachineType(MachineType::from(name))),
        path: kind.path,
        value: kind.value,
    });
    let of_firmware = |need, path| Requirement {
        need: Need::Hardware(need),
        path,
        value: None,
    };
    let (efi, secure_boot) = (firmware::efi(merged), firmware::secure_boot(merged));
    let of_firmware = match (efi.value, secure_boot.value) {
        (Some(true), Some(true)) => Some(of_firmware(HardwareNeed::SecureBoot, secure_boot.path)),
        (Some(true), _) => Some(of_firmware(HardwareNeed::Efi, efi.path)),
        _ => None,
    };
    let tpm = state::requested_tpm(merged).map(|_| Requirement {
        need: Need::Hardware(HardwareNeed::Tpm),
        path: state::tpm_path(merged),
        value: None,
    });
    let model = hardware::cpu_model(merged);
    let name = model.value.filter(|name| form::is_label_name(name));
    let cpu_model = name.map(|name| Requirement {
        need: Need::Hardware(HardwareNeed::CpuModel(name.into())),
        path: model.path,
        value: model.value,
    });
    let pages = hardware::hugepages(merged);
    let size = pages.value.and_then(HugepageSize::parse);
    let hugepages = size.map(|size| Requirement {
        need: Need::Hardware(HardwareNeed::Hugepages(size)),
        path: pages.path,
        value: pages.value,
    });
    let all = [machine_type, of_firmware, cpu_model, hugepages, tpm];
    all.into_iter().flatten()
}

/// Rules [`Code::MachineTypeNotOffered`], [`Code::FirmwareNotOffered`], [`Code::TpmNotOffered`],
/// [`Code::CpuModelNotOffered`] and [`Code::HugepagesNotOffered`].
pub(super) fn not_offered(
    requirement: &Requirement<'_>,
    need: &HardwareNeed<'_>,
    hosts: &[Arc<HostRow>],
    findings: &mut Findings,
) {
    let all = || hosts.iter().map(|host| &host.hardware);
    // Nothing that was written is wrong, or it is no more than `true`.
    let forbidden = |code, detail| {
        let path = requirement.path;
        Violation::new(path, code, Kind::Forbidden, detail)
    };
    let invalid = |code, detail| requirement.fault(code, Kind::Invalid, detail);
    findings.deny(match need {
        HardwareNeed::MachineType(_) => {
            let kinds = [MachineType::Q35, MachineType::Pc];
            let is_offered =
                |kind: &MachineType| all().any(|it| it.machine_types.iter().any(|it| it == kind.as_str()));
            let instead = match kinds.into_iter().find(is_offered) {
                Some(kind) => format!("take {kind}"),
                None => "use backend: kubevirt".to_owned(),
            };
            let detail = format!("no LibvirtHost has {need}; {instead}");
            invalid(Code::MachineTypeNotOffered, detail)
        }
        HardwareNeed::Efi | HardwareNeed::SecureBoot => {
            let field = match need {
                HardwareNeed::SecureBoot => "secureBoot",
                _ => "efi",
            };
            let detail =
                format!("no LibvirtHost has {need}: install ovmf on one, or set {field}: false");
            forbidden(Code::FirmwareNotOffered, detail)
        }
        HardwareNeed::Tpm => {
            let detail = "no LibvirtHost can emulate a TPM: install swtpm on one (package swtpm-tools), or drop tpm";
            forbidden(Code::TpmNotOffered, detail.to_owned())
        }
        HardwareNeed::CpuModel(model) => {
            let known: BTreeSet<_> = all().flat_map(|it| it.cpu_models.iter()).collect();
            let known: Vec<_> = known.into_iter().cloned().collect();
            let nearest = did_you_mean(model, known.iter().map(String::as_str));
            let known = nearest_first(model, known);
            let detail = format!(
                "{nearest}guests of no LibvirtHost can have it; models of LibvirtHosts: {known}"
            );
            invalid(Code::CpuModelNotOffered, detail)
        }
        HardwareNeed::Hugepages(_) => {
            let sizes = all().flat_map(|it| it.hugepages.iter().flat_map(|it| it.iter()));
            let sizes: BTreeSet<_> = sizes.map(|size| size.as_str().to_owned()).collect();
            let instead = if sizes.is_empty() {
                "no host has any huge pages; reserve some, or drop it".to_owned()
            } else {
                let sizes = name_list(sizes.into_iter().collect());
                format!("sizes of LibvirtHosts: {sizes}")
            };
            let detail = format!("no LibvirtHost has {need}; {instead}");
            invalid(Code::HugepagesNotOffered, detail)
        }
    });
}
