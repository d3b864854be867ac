//! Whether a guest starts.

use roxmltree::Document;

use super::HostState;
use super::described::resolved;
use super::found::refused;
use crate::access::{Result, xml};

/// Whether QEMU would start: the objects that a definition names are looked up at the start only.
pub(super) fn startable(state: &HostState, domain: &str) -> Result<()> {
    let document = Document::parse(domain).unwrap();
    let machine = document
        .descendants()
        .find_map(|it| it.attribute("machine"));
    if let Some(machine) =
        machine.filter(|it| !state.info.machine_types.iter().any(|known| known == it))
    {
        return Err(refused(&format!(
            "unsupported configuration: Emulator does not support machine type '{machine}'"
        )));
    }
    let cpu = xml::child(document.root_element(), "cpu");
    let model = cpu
        .and_then(|cpu| xml::child(cpu, "model"))
        .and_then(|model| model.text());
    let mut models = state.info.cpu_models.values().flatten();
    if let Some(model) = model
        && !models.any(|known| known == model)
    {
        return Err(refused(&format!(
            "internal error: Unknown CPU model {model}"
        )));
    }
    let devices = xml::child(document.root_element(), "devices");
    for device in devices.into_iter().flat_map(|it| it.children()) {
        let source = xml::child(device, "source");
        let named = |name| source.and_then(|it| it.attribute(name));
        if let Some(bridge) =
            named("bridge").filter(|it| !state.bridges.iter().any(|known| known == it))
        {
            return Err(refused(&format!(
                "Cannot get interface MTU on '{bridge}': No such device"
            )));
        }
        if let Some(network) = named("network")
            && !state.networks.get(network).is_some_and(|it| it.active)
        {
            return Err(refused(&format!(
                "Requested operation is not valid: network '{network}' is not active"
            )));
        }
        let model = xml::child(device, "model").and_then(|it| it.attribute("type"));
        if let Some(model) =
            model.filter(|it| device.has_tag_name("interface") && !MODELS.contains(it))
        {
            return Err(refused(&format!(
                "internal error: QEMU unexpectedly closed the monitor: '{model}' is not a valid device model name"
            )));
        }
    }
    for source in xml::sources(domain)?.all {
        let text = format!("{source:?}");
        let path = resolved(state, source).ok_or_else(|| {
            refused(&format!(
                "Storage volume not found: no storage vol for {text}"
            ))
        })?;
        let ours = state
            .pools
            .iter()
            .find(|(pool, _)| path.starts_with(&HostState::path(pool, "")));
        let there = ours.is_none_or(|(pool, it)| {
            it.volumes
                .keys()
                .any(|name| HostState::path(pool, name) == path)
        });
        if !there {
            return Err(refused(&format!(
                "Cannot access storage file '{path}': No such file or directory"
            )));
        }
    }
    Ok(())
}

/// Models of network cards that QEMU supports.
const MODELS: [&str; 4] = ["virtio", "e1000", "e1000e", "rtl8139"];
