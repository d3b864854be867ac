//! Raw disks of Machines, as they are.
//!
//! libvirt probes every file when it reads a pool. A guest that writes the header of a qcow2 image into its raw disk
//! decides what libvirt then reports: format, size, and a backing file, which may be anybody's volume. The name of a
//! volume that the controller made says that it is raw, so what was probed is ignored. A true overlay never has such a
//! name: the controller makes raw volumes as copies, and a snapshot has another name.

use common::render::libvirt::is_raw_disk;

use super::Volume;

/// A volume as it is, of what libvirt reports. `physical`: the length of its file or device, in bytes.
pub(super) fn as_it_is(reported: Volume, physical: Option<u64>) -> Volume {
    if !is_raw_disk(&reported.name) {
        return reported;
    }
    Volume {
        capacity: physical.unwrap_or(reported.capacity),
        backing: None,
        is_misread: reported.format != RAW,
        format: RAW.to_owned(),
        ..reported
    }
}

const RAW: &str = "raw";

#[cfg(test)]
mod tests {
    use crate::access::xml;

    /// What libvirt 9.0 reports of a raw file of 64 MiB whose guest wrote a qcow2 header into it.
    fn forged(name: &str) -> String {
        format!(
            "<volume type='file'><name>{name}</name><key>/vms/{name}</key><source/>
               <capacity unit='bytes'>4611686018427387904</capacity>
               <allocation unit='bytes'>4096</allocation>
               <physical unit='bytes'>67108864</physical>
               <target><path>/vms/{name}</path><format type='qcow2'/></target>
               <backingStore><path>/vms/base.qcow2</path><format type='raw'/></backingStore>
             </volume>"
        )
    }

    #[test]
    fn what_a_guest_wrote_into_its_raw_disk_says_nothing_about_the_volume() {
        for name in [
            "default-web-cd62a16e.data.raw",
            "default-web-cd62a16e.data.raw.attempt-66f0c0de",
        ] {
            let volume = xml::volume(&forged(name)).unwrap();
            assert_eq!(
                (volume.format.as_str(), volume.capacity, volume.backing),
                ("raw", 64 << 20, None)
            );
            assert!(volume.is_misread);
        }
    }

    #[test]
    fn an_overlay_counts_as_one_under_any_name() {
        for name in [
            "default-web-cd62a16e.data.qcow2",
            "default-web-cd62a16e.data.snapshot",
            "clone.raw",
        ] {
            let volume = xml::volume(&forged(name)).unwrap();
            assert_eq!(volume.backing.as_deref(), Some("/vms/base.qcow2"), "{name}");
            assert_eq!((volume.capacity, volume.is_misread), (1 << 62, false));
        }
    }

    #[test]
    fn a_raw_disk_without_a_header_is_read_as_libvirt_reports_it() {
        let text = forged("default-web-cd62a16e.data.raw").replace("qcow2'/></t", "raw'/></t");
        let text = text.replace("4611686018427387904", "67108864");
        let volume = xml::volume(&text).unwrap();
        assert_eq!((volume.capacity, volume.is_misread), (64 << 20, false));
        // libvirt's test driver reports no physical size.
        let (before, rest) = text.split_once("<physical").unwrap();
        let text = before.to_owned() + rest.split_once("</physical>").unwrap().1;
        assert_eq!(xml::volume(&text).unwrap().capacity, 64 << 20);
    }
}
