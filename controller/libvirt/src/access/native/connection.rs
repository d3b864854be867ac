//! A connection of libvirt's library. One implementation of one trait, so one file.

use std::collections::BTreeMap;
use std::io::Read;

use common::api::status::GuestOs;
use common::render::libvirt::{
    AppliedPassword, DISPLAY_KEY, DISPLAY_URI, METADATA_KEY, METADATA_URI, Reference,
};
use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::Error;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::stream::Stream;
use virt::sys;

use super::content;
use super::dhcp;
use super::raw;
use super::read::{self, ARCHITECTURE, ELEMENT, existing, volume};
use crate::access::xml::GuestHardware;
use crate::access::{
    AccessError, CardAddresses, Connection, DhcpHost, DhcpServer, DomainDetail, DomainDisks,
    DomainHardware, DomainState, FirmwareState, HostInfo, Lease, Network, Pool, Result, Shutdown,
    Volume, xml,
};

/// Limit in seconds for an answer of a guest's agent. A frozen agent would otherwise block the connection for ever.
const AGENT_TIMEOUT: i32 = 3;

pub(super) struct Native(Connect);

impl Native {
    pub(super) fn new(connection: Connect) -> Self {
        Self(connection)
    }

    /// Once the connection is gone it is unknown whether the call took effect, whatever the error's code is.
    fn run<T>(&self, work: impl FnOnce(&Connect) -> Result<T>) -> Result<T> {
        work(&self.0).map_err(|error| {
            if self.0.is_alive().unwrap_or(false) {
                error
            } else {
                AccessError::Disconnected(error.to_string())
            }
        })
    }

    fn on<T>(&self, uuid: Uuid, work: impl FnOnce(&Domain) -> Result<T>) -> Result<T> {
        self.run(|host| work(&host.lookup_domain_by_uuid(uuid)?))
    }

    fn at<T>(&self, pool: &str, work: impl FnOnce(&StoragePool) -> Result<T>) -> Result<T> {
        self.run(|host| work(&host.lookup_storage_pool_by_name(pool)?))
    }

    fn with<T>(
        &self,
        pool: &str,
        name: &str,
        work: impl FnOnce(&StorageVol) -> Result<T>,
    ) -> Result<T> {
        self.at(pool, |pool| work(&pool.lookup_storage_vol_by_name(name)?))
    }
}

impl Connection for Native {
    fn alive(&mut self) -> bool {
        self.0.is_alive().unwrap_or(false)
    }

    fn host_uuid(&mut self) -> Result<Option<Uuid>> {
        self.run(|host| xml::host_uuid(&host.capabilities()?))
    }

    fn info(&mut self) -> Result<HostInfo> {
        self.run(|host| {
            let node = host.node_info()?;
            let domains = read::domain_capabilities(host)?;
            // Firmware and TPM do not depend on how guests are run.
            let hardware = domains.values().next().map(|it| xml::guest_hardware(it));
            let GuestHardware {
                efi,
                secure_boot,
                tpm,
            } = hardware.transpose()?.unwrap_or_default();
            let models = domains.iter().map(|(virt_type, capabilities)| {
                Ok((*virt_type, xml::cpu_models(capabilities, *virt_type)?))
            });
            let capabilities = host.capabilities()?;
            Ok(HostInfo {
                libvirt_version: read::dotted(host.lib_version()?),
                hypervisor_version: read::dotted(host.hyp_version()?),
                uuid: xml::host_uuid(&capabilities)?,
                cpus: node.cpus,
                memory: node.memory * 1024,
                machine_types: xml::machine_types(&capabilities, ARCHITECTURE)?,
                cpu_models: models.collect::<Result<_>>()?,
                hugepages: xml::hugepages(&capabilities)?,
                efi,
                secure_boot,
                tpm,
                mac_filter: read::has_mac_filter(host)?,
                security_drivers: xml::security_drivers(&capabilities)?,
            })
        })
    }

    fn pools(&mut self) -> Result<Vec<Pool>> {
        self.run(|host| existing(host.list_all_storage_pools(0)?, read::pool))
    }

    fn networks(&mut self) -> Result<Vec<Network>> {
        self.run(|host| existing(host.list_all_networks(0)?, read::network))
    }

    fn bridges(&mut self) -> Result<Vec<String>> {
        self.run(|host| {
            let devices =
                match host.list_all_node_devices(sys::VIR_CONNECT_LIST_NODE_DEVICES_CAP_NET) {
                    Ok(devices) => devices,
                    Err(error) => match AccessError::from(error) {
                        AccessError::Unsupported(_) => return Ok(vec![]),
                        other => return Err(other),
                    },
                };
            let interfaces = existing(devices, |it| xml::interface(&it.xml_desc(0)?))?;
            let mut interfaces: Vec<String> = interfaces.into_iter().flatten().collect();
            interfaces.sort();
            Ok(interfaces)
        })
    }

    fn domains(&mut self) -> Result<Vec<DomainState>> {
        self.run(|host| existing(host.list_all_domains(0)?, read::state))
    }

    fn domain(&mut self, uuid: Uuid) -> Result<Option<DomainDetail>> {
        let detail = self.on(uuid, |domain| {
            let state = read::state(domain)?;
            let live = state.state.active().then(|| domain.xml_desc(0));
            Ok(DomainDetail {
                inactive: domain.xml_desc(sys::VIR_DOMAIN_XML_INACTIVE)?,
                live: live.transpose()?,
                state,
            })
        });
        detail.map_or_else(AccessError::absent, |it| Ok(Some(it)))
    }

    fn disks_of_all(&mut self) -> Result<Vec<DomainDisks>> {
        self.run(|host| {
            // Many domains have the same medium.
            let mut paths: BTreeMap<Reference, Option<String>> = BTreeMap::new();
            existing(host.list_all_domains(0)?, |domain| {
                let mut disks = DomainDisks {
                    uuid: domain.uuid()?,
                    ..DomainDisks::default()
                };
                for flags in [sys::VIR_DOMAIN_XML_INACTIVE, 0] {
                    let sources = xml::sources(&domain.xml_desc(flags)?)?;
                    disks.add(&sources, |source| {
                        if let Some(known) = paths.get(source) {
                            return Ok(known.clone());
                        }
                        let path = read::resolved(host, source)?;
                        paths.insert(source.clone(), path.clone());
                        Ok(path)
                    })?;
                }
                Ok(disks)
            })
        })
    }

    fn hardware_of_all(&mut self) -> Result<BTreeMap<Uuid, DomainHardware>> {
        self.run(|host| {
            let all = existing(host.list_all_domains(0)?, |domain| {
                let of = |flags| xml::hardware(&domain.xml_desc(flags)?);
                let defined = of(sys::VIR_DOMAIN_XML_INACTIVE)?;
                Ok((domain.uuid()?, defined.joined(of(0)?)))
            });
            Ok(all?.into_iter().collect())
        })
    }

    fn define(&mut self, xml: &str) -> Result<()> {
        self.run(|host| {
            host.define_domain_xml_flags(xml, sys::VIR_DOMAIN_DEFINE_VALIDATE)?;
            Ok(())
        })
    }

    fn undefine(&mut self, uuid: Uuid, state: FirmwareState) -> Result<()> {
        self.on(uuid, |domain| {
            if raw::state(domain)?.0.active() {
                let name = domain.name()?;
                return Err(AccessError::Refused(format!(
                    "domain '{name}' is not shut off"
                )));
            }
            for flags in undefine_flags(state) {
                match domain.undefine_flags(flags) {
                    Err(error) if unknown_flag(&error) => {}
                    other => return Ok(other?),
                }
            }
            Ok(domain.undefine()?)
        })
    }

    fn set_metadata(&mut self, uuid: Uuid, element: Option<&str>) -> Result<()> {
        self.on(uuid, |domain| {
            let (key, uri) = (Some(METADATA_KEY), Some(METADATA_URI));
            // Without AFFECT_CONFIG the change would be lost when the guest stops.
            let live = if domain.is_active()? {
                sys::VIR_DOMAIN_AFFECT_LIVE
            } else {
                0
            };
            let flags = sys::VIR_DOMAIN_AFFECT_CONFIG | live;
            Ok(domain.set_metadata(ELEMENT, element, key, uri, flags)?)
        })
    }

    fn start(&mut self, uuid: Uuid, reset_nvram: bool) -> Result<()> {
        let flags = if reset_nvram {
            sys::VIR_DOMAIN_START_RESET_NVRAM
        } else {
            0
        };
        self.on(uuid, |domain| named(domain.create_with_flags(flags)))
    }

    fn shutdown(&mut self, uuid: Uuid, how: Shutdown) -> Result<()> {
        self.on(uuid, |domain| {
            let flags = match how {
                Shutdown::Agent => {
                    raw::set_agent_timeout(domain, AGENT_TIMEOUT)?;
                    sys::VIR_DOMAIN_SHUTDOWN_GUEST_AGENT
                }
                Shutdown::Acpi => sys::VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN,
            };
            Ok(domain.shutdown_flags(flags)?)
        })
    }

    fn destroy(&mut self, uuid: Uuid) -> Result<()> {
        self.on(uuid, |domain| Ok(domain.destroy()?))
    }

    fn reset(&mut self, uuid: Uuid) -> Result<()> {
        self.on(uuid, |domain| Ok(domain.reset().map(drop)?))
    }

    fn attach(&mut self, uuid: Uuid, device: &str) -> Result<()> {
        self.on(uuid, |domain| {
            named(domain.attach_device_flags(device, sys::VIR_DOMAIN_AFFECT_CURRENT))
        })
    }

    fn detach(&mut self, uuid: Uuid, device: &str) -> Result<()> {
        self.on(uuid, |domain| {
            Ok(domain.detach_device_flags(device, sys::VIR_DOMAIN_AFFECT_CURRENT)?)
        })
    }

    fn update(&mut self, uuid: Uuid, device: &str) -> Result<()> {
        self.on(uuid, |domain| {
            named(domain.update_device_flags(device, sys::VIR_DOMAIN_AFFECT_CURRENT))
        })
    }

    fn set_display_password(
        &mut self,
        uuid: Uuid,
        device: &str,
        applied: Option<&str>,
    ) -> Result<()> {
        let live = sys::VIR_DOMAIN_AFFECT_LIVE;
        let (key, uri) = (Some(DISPLAY_KEY), Some(DISPLAY_URI));
        self.on(uuid, |domain| {
            // If this ends in between, the guest has a record without a version: the next pass sets or locks it again.
            if applied.is_some() {
                domain.set_metadata(
                    ELEMENT,
                    Some(&AppliedPassword::default().xml()),
                    key,
                    uri,
                    live,
                )?;
            }
            named(domain.update_device_flags(device, live))?;
            Ok(domain.set_metadata(ELEMENT, applied, key, uri, live)?)
        })
    }

    fn set_vcpus(&mut self, uuid: Uuid, count: u32) -> Result<()> {
        self.on(uuid, |domain| {
            Ok(domain.set_vcpus_flags(count, sys::VIR_DOMAIN_AFFECT_CURRENT)?)
        })
    }

    fn set_memory(&mut self, uuid: Uuid, kib: u64) -> Result<()> {
        self.on(uuid, |domain| {
            Ok(domain.set_memory_flags(kib, sys::VIR_DOMAIN_AFFECT_CURRENT)?)
        })
    }

    fn resize_disk(&mut self, uuid: Uuid, target: &str, bytes: u64) -> Result<()> {
        let flags = sys::VIR_DOMAIN_BLOCK_RESIZE_BYTES;
        self.on(
            uuid,
            |domain| Ok(domain.block_resize(target, bytes, flags)?),
        )
    }

    fn volumes(&mut self, pool: &str) -> Result<Vec<Volume>> {
        self.at(pool, |pool| existing(pool.list_all_volumes(0)?, volume))
    }

    fn refresh(&mut self, pool: &str) -> Result<()> {
        self.at(pool, |pool| Ok(pool.refresh(0)?))
    }

    fn volume(&mut self, pool: &str, name: &str) -> Result<Option<Volume>> {
        self.at(pool, |pool| match pool.lookup_storage_vol_by_name(name) {
            Ok(found) => volume(&found).map_or_else(AccessError::absent, |it| Ok(Some(it))),
            Err(error) => AccessError::from(error).absent(),
        })
    }

    fn create_volume(&mut self, pool: &str, xml: &str) -> Result<Volume> {
        self.at(pool, |pool| volume(&StorageVol::create_xml(pool, xml, 0)?))
    }

    fn copy_volume(&mut self, pool: &str, xml: &str, from: (&str, &str)) -> Result<Volume> {
        self.with(from.0, from.1, |source| {
            self.at(pool, |pool| {
                volume(&StorageVol::create_xml_from(pool, xml, source, 0)?)
            })
        })
    }

    fn resize_volume(&mut self, pool: &str, name: &str, bytes: u64) -> Result<()> {
        self.with(pool, name, |volume| Ok(volume.resize(bytes, 0)?))
    }

    fn delete_volume(&mut self, pool: &str, name: &str) -> Result<()> {
        let done = self.at(pool, |pool| {
            let found = match pool.lookup_storage_vol_by_name(name) {
                Ok(found) => found,
                Err(error) => return AccessError::from(error).absent::<()>(),
            };
            found
                .delete(0)
                .map_or_else(|error| AccessError::from(error).absent(), |()| Ok(Some(())))
        });
        done.map(drop)
    }

    fn upload(&mut self, pool: &str, name: &str, source: &mut dyn Read, length: u64) -> Result<()> {
        self.with(pool, name, |volume| {
            let stream = Stream::new(&self.0, 0)?;
            volume.upload(&stream, 0, length, 0)?;
            match content::send(&stream, source, length) {
                Ok(()) => Ok(stream.finish()?),
                Err(error) => {
                    // Report the first error: a failure of the abort is a consequence of it.
                    let _ = stream.abort();
                    Err(error)
                }
            }
        })
    }

    fn head(&mut self, pool: &str, name: &str, limit: u64) -> Result<Vec<u8>> {
        self.with(pool, name, |volume| {
            let stream = Stream::new(&self.0, 0)?;
            volume.download(&stream, 0, limit, 0)?;
            match content::receive(&stream, limit) {
                Ok(content) => Ok((stream.finish()?, content).1),
                Err(error) => {
                    let _ = stream.abort();
                    Err(error)
                }
            }
        })
    }

    fn leases(&mut self, network: &str) -> Result<Vec<Lease>> {
        self.run(|host| Ok(raw::leases(&host.lookup_network_by_name(network)?)?))
    }

    fn dhcp_server(&mut self, network: &str) -> Result<DhcpServer> {
        self.run(|host| dhcp::server(&host.lookup_network_by_name(network)?))
    }

    fn add_dhcp_host(&mut self, network: &str, host: DhcpHost) -> Result<()> {
        self.run(|connect| {
            let network = connect.lookup_network_by_name(network)?;
            dhcp::update(&network, dhcp::Change::Add, host)
        })
    }

    fn remove_dhcp_host(&mut self, network: &str, host: DhcpHost) -> Result<()> {
        self.run(|connect| {
            let network = connect.lookup_network_by_name(network)?;
            dhcp::update(&network, dhcp::Change::Remove, host)
        })
    }

    fn agent_addresses(&mut self, uuid: Uuid, known: &mut CardAddresses) -> Result<()> {
        self.on(uuid, |domain| {
            raw::set_agent_timeout(domain, AGENT_TIMEOUT)?;
            Ok(raw::agent_addresses(domain, known)?)
        })
    }

    fn ask_agent(&mut self, uuid: Uuid, seconds: i32) -> Result<()> {
        self.on(uuid, |domain| {
            raw::set_agent_timeout(domain, seconds)?;
            match domain.time(0) {
                // An administrator of the guest may forbid the question: the agent is there all the same.
                Err(error) if error.code().to_raw() == sys::VIR_ERR_AGENT_COMMAND_FAILED => Ok(()),
                answer => Ok(answer.map(drop)?),
            }
        })
    }

    fn guest_os(&mut self, uuid: Uuid) -> Result<GuestOs> {
        self.on(uuid, |domain| {
            raw::set_agent_timeout(domain, AGENT_TIMEOUT)?;
            Ok(raw::guest_os(domain)?)
        })
    }
}

/// Flags of undefine by version of libvirt and driver: all since 8.9, without the TPM since 5.6, and those that the
/// test driver supports.
fn undefine_flags(state: FirmwareState) -> [sys::virDomainUndefineFlagsValues; 3] {
    let saved = sys::VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
        | sys::VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
        | sys::VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA;
    let removed = (sys::VIR_DOMAIN_UNDEFINE_NVRAM, sys::VIR_DOMAIN_UNDEFINE_TPM);
    let kept = (
        sys::VIR_DOMAIN_UNDEFINE_KEEP_NVRAM,
        sys::VIR_DOMAIN_UNDEFINE_KEEP_TPM,
    );
    let (all, (nvram, tpm)) = match state {
        FirmwareState::Remove => (saved, removed),
        FirmwareState::RemoveAlone => (0, removed),
        FirmwareState::Keep => (saved, kept),
    };
    [all | nvram | tpm, all | nvram, all]
}

/// Whether libvirt rejected the call because it does not support a flag.
fn unknown_flag(error: &Error) -> bool {
    error.code().to_raw() == sys::VIR_ERR_INVALID_ARG
        && error.message().contains("unsupported flags")
}

/// Maps "network or volume not found" to another error, as it does not mean that the domain is absent.
fn named(outcome: Result<(), Error>) -> Result<()> {
    outcome.map_err(|error| match AccessError::from(error) {
        AccessError::Absent(message) => AccessError::Refused(message),
        other => other,
    })
}
