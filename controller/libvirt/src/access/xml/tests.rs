use common::mac::Mac;

use super::*;

#[test]
fn machine_types_are_those_of_the_architecture_by_both_names() {
    let capabilities = "<capabilities>
        <guest><arch name='i686'><machine>isapc</machine></arch></guest>
        <guest><arch name='x86_64'><machine canonical='pc-q35-7.2' maxCpus='288'>q35</machine>
          <machine maxCpus='288'>pc-q35-7.2</machine><domain type='qemu'/></arch></guest>
      </capabilities>";
    assert_eq!(
        machine_types(capabilities, "x86_64").unwrap(),
        ["pc-q35-7.2", "q35"]
    );
}

#[test]
fn security_drivers_are_the_models_that_confine_a_guest() {
    let capabilities = |models: &[&str]| {
        let model =
            |model: &&str| format!("<secmodel><model>{model}</model><doi>0</doi></secmodel>");
        let models: String = models.iter().map(model).collect();
        format!("<capabilities><host><cpu/>{models}</host></capabilities>")
    };
    let found = |models: &[&str]| security_drivers(&capabilities(models)).unwrap();
    assert_eq!(found(&["apparmor", "dac"]), ["apparmor"]);
    assert_eq!(found(&["none", "dac"]), [""; 0]);
    assert_eq!(found(&[]), [""; 0]);
}

#[test]
fn a_network_of_another_switch_is_no_linux_bridge() {
    let network = |content: &str| format!("<network><name>lan</name>{content}</network>");
    let found = |content: &str| is_linux_bridge(&network(content)).unwrap();
    assert!(found(
        "<forward mode='nat'/><bridge name='virbr0' stp='on'/>"
    ));
    assert!(found("<forward mode='bridge'/><bridge name='br0'/>"));
    assert!(!found(
        "<forward mode='bridge'/><bridge name='ovs0'/><virtualport type='openvswitch'/>"
    ));
    assert!(!found(
        "<bridge name='br0'/><portgroup name='a'><virtualport type='openvswitch'/></portgroup>"
    ));
    assert!(!found(
        "<forward mode='bridge'><interface dev='eth0'/></forward>"
    ));
}

#[test]
fn a_dhcp_server_has_the_subnets_and_hosts_of_ipv4() {
    let server = dhcp_server(
        "<network><name>lan</name>
           <ip address='10.0.0.1' netmask='255.255.255.0'><dhcp>
             <range start='10.0.0.2' end='10.0.0.99'/>
             <host mac='52:54:00:00:00:01' name='web' ip='10.0.0.100'/>
             <host name='by-name' ip='10.0.0.101'/></dhcp></ip>
           <ip address='10.1.0.1' prefix='28'><dhcp/></ip>
           <ip address='10.2.0.1' prefix='24'/>
           <ip family='ipv6' address='fd00::1' prefix='64'><dhcp>
             <host id='0:1' ip='fd00::5'/></dhcp></ip></network>",
    )
    .unwrap();
    let host = DhcpHost {
        mac: Mac::new([0x52, 0x54, 0, 0, 0, 1]),
        address: [10, 0, 0, 100].into(),
    };
    assert_eq!(server.hosts, [host]);
    assert_eq!(server.partial, [(None, Some([10, 0, 0, 101].into()))]);
    let by_name = DhcpHost {
        address: [10, 0, 0, 101].into(),
        ..host
    };
    assert!(server.refuses(by_name) && !server.refuses(host));
    let subnets: Vec<_> = server.subnets.iter().map(Cidr::to_string).collect();
    assert_eq!(subnets, ["10.0.0.0/24", "10.1.0.0/28"]);
    for (address, is_served) in [
        ([10, 0, 0, 200], true),
        ([10, 1, 0, 15], true),
        ([10, 1, 0, 16], false),
        ([10, 2, 0, 2], false),
    ] {
        assert_eq!(server.serves(address.into()), is_served, "{address:?}");
    }
    let dual = "<network><ip family='ipv6' address='fd00::1' prefix='64'><dhcp/></ip>
        <ip address='10.2.0.1' prefix='24'/><ip address='10.0.0.1' prefix='24'><dhcp/></ip></network>";
    assert_eq!(subnet_of(dual, [10, 0, 0, 9].into()).unwrap(), Some(2));
    assert_eq!(subnet_of(dual, [10, 2, 0, 9].into()).unwrap(), None);
    assert_eq!(
        dhcp_host(host),
        "<host mac='52:54:00:00:00:01' ip='10.0.0.100'/>"
    );
    assert_eq!(
        dhcp_server("<network/>").unwrap(),
        DhcpServer::default(),
        "no server"
    );
}

#[test]
fn a_host_has_usable_models_supported_modes_and_pages_that_it_has() {
    let domain = "<domainCapabilities><cpu>
         <mode name='host-passthrough' supported='no'/>
         <mode name='maximum' supported='yes'><enum name='maximumMigratable'><value>on</value></enum></mode>
         <mode name='host-model' supported='yes'><model fallback='forbid'>EPYC</model></mode>
         <mode name='custom' supported='yes'>
           <model usable='no' vendor='Intel'>Skylake-Server</model>
           <model usable='yes' vendor='unknown'>qemu64</model><model usable='yes'>Nehalem</model>
         </mode></cpu></domainCapabilities>";
    let usable = ["Nehalem", "host-model", "maximum", "qemu64"];
    assert_eq!(cpu_models(domain, VirtType::Kvm).unwrap(), usable);
    let all = [
        "Nehalem",
        "Skylake-Server",
        "host-model",
        "maximum",
        "qemu64",
    ];
    assert_eq!(cpu_models(domain, VirtType::Qemu).unwrap(), all);
    let nothing = cpu_models("<domainCapabilities/>", VirtType::Qemu);
    assert_eq!(nothing.unwrap(), [""; 0]);
    let host = |cells: &str| {
        let text = format!(
            "<capabilities><host><cpu><pages unit='KiB' size='1048576'/></cpu>
             <topology><cells>{cells}</cells></topology></host></capabilities>"
        );
        hugepages(&text).unwrap()
    };
    let cell = |count: u32| {
        format!(
            "<cell id='0'><pages unit='KiB' size='4'>99</pages>
             <pages unit='KiB' size='2048'>{count}</pages>
             <pages unit='KiB' size='1048576'>0</pages></cell>"
        )
    };
    let both = cell(0) + &cell(512);
    assert_eq!(host(&both), Some(vec![HugepageSize::Mebi2]));
    assert_eq!(host(&cell(0)), Some(vec![]));
    assert_eq!(host("<cell id='0'/>"), None);
}

#[test]
fn secure_boot_needs_a_loader_and_a_tpm_an_emulator() {
    let capabilities = |secure: &str, backend: &str| {
        format!(
            "<domainCapabilities><os supported='yes'>
               <enum name='firmware'><value>bios</value><value>efi</value></enum>
               <loader supported='yes'><enum name='secure'>{secure}</enum></loader>
             </os><devices><tpm supported='yes'>
               <enum name='model'><value>tpm-crb</value></enum>
               <enum name='backendModel'><value>passthrough</value>{backend}</enum>
             </tpm></devices></domainCapabilities>"
        )
    };
    let found = |capabilities: &str| {
        let found = guest_hardware(capabilities).unwrap();
        (found.efi, found.secure_boot, found.tpm)
    };
    let emulator = "<value>emulator</value>";
    let all = capabilities("<value>no</value><value>yes</value>", emulator);
    assert_eq!(found(&all), (true, true, true));
    let neither = capabilities("<value>no</value>", "");
    assert_eq!(found(&neither), (true, false, false));
    assert_eq!(found("<domainCapabilities/>"), (false, false, false));
}
