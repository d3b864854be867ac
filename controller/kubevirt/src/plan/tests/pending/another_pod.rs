//! Changes that wait until the guest has another pod.

use super::*;

/// The pod of a guest on this network that was placed by these labels, as KubeVirt makes it.
pub(super) fn pod(network: &str, labels: &serde_json::Value) -> GuestPod {
    let networks = json!([{"name": network, "namespace": "default", "interface": "pod1"}]);
    let mut selector = labels.clone();
    selector["kubevirt.io/schedulable"] = json!("true");
    let mut pod: GuestPod = decode(json!({
        "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": networks.to_string()}},
        "spec": {
            "nodeName": "node-1", "nodeSelector": selector,
            // Kubernetes adds this one to every pod.
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        },
    }));
    pod.prune();
    pod
}

#[test]
fn other_tolerations_wait_until_the_guest_has_another_pod() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    environment.pod = Some(pod("prod", &json!({})));
    let gpu = |effect| NormalizedToleration {
        effect,
        key: Some("gpu".into()),
        operator: TolerationOperator::Exists,
        toleration_seconds: None,
        value: None,
    };
    let set = |environment: &mut FakeCluster, toleration| {
        edit(environment, |block| {
            block.placement = Some(NormalizedPlacement {
                tolerations: vec![toleration],
                ..NormalizedPlacement::default()
            });
        });
        environment.settle();
        let conditions = vec![kubevirt_says("LiveMigratable", "True", "")];
        take_over(environment, conditions);
        environment.settle();
    };
    set(&mut environment, gpu(None));
    let action = "LiveMigration";
    let expected = [["placement.tolerations", "none", "gpu:*", action]];
    assert_eq!(pending(&environment), expected);

    // The guest was migrated.
    let mut moved = pod("prod", &json!({}));
    let vm = environment.vm.as_ref().unwrap();
    moved
        .spec
        .tolerations
        .extend(vm.spec.template.spec.tolerations.clone());
    environment.pod = Some(moved);
    environment.settle();
    assert_eq!(pending(&environment), [[""; 4]; 0]);

    set(&mut environment, gpu(Some(TaintEffect::NoSchedule)));
    let field = "placement.tolerations";
    assert_eq!(
        pending(&environment),
        [[field, "none", "gpu:NoSchedule", action]]
    );
}

#[test]
fn other_annotations_wait_for_a_restart() {
    let mut environment = running();
    let annotations = [("example.com/team".to_owned(), "a".to_owned())];
    environment.machine_mut().annotations = annotations.into();
    environment.settle();
    let expected = [[
        "metadata.annotations",
        "as it was",
        "as it is now",
        "Restart",
    ]];
    assert_eq!(pending(&environment), expected);
}

#[test]
fn other_hardware_of_the_node_and_another_priority_wait_for_a_restart() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    let device = |name: &str, device_name: &str, kind| NormalizedDevice {
        device_name: device_name.into(),
        kind,
        name: name.into(),
    };
    let mut set = |change: &dyn Fn(&mut Normalized), expected: &[[&str; 4]]| {
        edit(&mut environment, |block| change(block));
        environment.settle();
        assert_eq!(pending(&environment), expected);
        // The guest was restarted.
        environment.instance = None;
        environment.settle();
        assert_eq!(pending(&environment), [[""; 4]; 0]);
    };
    let all = |block: &mut Normalized| {
        block.hardware = Some(NormalizedHardware {
            cpu_model: Some("Skylake-Server".into()),
            dedicated_cpu: true,
            devices: vec![
                device("gpu", "nvidia.com/A100", DeviceKind::Pci),
                device("token", "kubevirt.io/token", DeviceKind::Usb),
            ],
            hugepages: Some(HugepageSize::Mebi2),
        });
        block.watchdog = Some(WatchdogAction::PowerOff);
        let probe = Probe {
            guest_agent_ping: Some(GuestAgentPing {}),
            ..Probe::default()
        };
        block.probes = Some(Probes {
            liveness: Some(Box::new(probe.with_defaults())),
            readiness: None,
        });
        let spread = TopologySpreadConstraint {
            max_skew: Some(1),
            ..TopologySpreadConstraint::default()
        };
        block.placement = Some(NormalizedPlacement {
            affinity: Some(Affinity {
                node_affinity: Some(NodeAffinity::default()),
                ..Affinity::default()
            }),
            priority_class_name: Some("high".into()),
            topology_spread_constraints: vec![spread],
            ..NormalizedPlacement::default()
        });
    };
    let changed = |field| [field, "as it was", "as it is now", "Restart"];
    let (affinity, liveness) = (changed("placement.affinity"), changed("probes.liveness"));
    let spread = changed("placement.topologySpreadConstraints");
    let expected = [
        ["cpu.dedicated", "false", "true", "Restart"],
        ["memory.hugepages", "none", "2Mi", "Restart"],
        ["devices[gpu]", "absent", "present", "Restart"],
        ["devices[token]", "absent", "present", "Restart"],
        ["watchdog", "none", "PowerOff", "Restart"],
        ["placement.priorityClassName", "none", "high", "Restart"],
        liveness,
        ["cpu.model", "none", "Skylake-Server", "Restart"],
        affinity,
        spread,
    ];
    set(&all, &expected);
    let other_device = |block: &mut Normalized| {
        let hardware = block.hardware.as_mut().unwrap();
        hardware.devices[0].device_name = "nvidia.com/T4".into();
    };
    let field = "devices[gpu].deviceName";
    let expected = [[field, "nvidia.com/A100", "nvidia.com/T4", "Restart"]];
    set(&other_device, &expected);
    let none = |block: &mut Normalized| {
        (block.hardware, block.placement) = (None, None);
        (block.watchdog, block.probes) = (None, None);
    };
    let expected = [
        ["cpu.dedicated", "true", "false", "Restart"],
        ["memory.hugepages", "2Mi", "none", "Restart"],
        ["devices[gpu]", "present", "absent", "Restart"],
        ["devices[token]", "present", "absent", "Restart"],
        ["watchdog", "PowerOff", "none", "Restart"],
        ["placement.priorityClassName", "high", "none", "Restart"],
        liveness,
        ["cpu.model", "Skylake-Server", "none", "Restart"],
        affinity,
        spread,
    ];
    set(&none, &expected);
}

#[test]
fn another_network_and_other_node_labels_wait_until_the_guest_has_another_pod() {
    let mut on_prod = block();
    on_prod.networks = vec![nic("eth0", Some("prod"))];
    on_prod.node_selector = [("disk".into(), "ssd".into())].into();
    let mut environment = FakeCluster::new(machine(on_prod));
    environment.add_network("prod", "br0");
    environment.add_network("test", "br1");
    environment.settle();
    let card = json!({"name": "eth0", "infoSource": "domain", "podInterfaceName": "pod1"});
    let instance = environment.instance.as_mut().unwrap();
    instance.status.interfaces = vec![decode(card)];
    environment.pod = Some(pod("prod", &json!({"disk": "ssd"})));
    environment.settle();
    assert_eq!(pending(&environment), [[""; 4]; 0]);

    edit(&mut environment, |block| {
        block.networks = vec![nic("eth0", Some("test"))];
        block.node_selector = [("disk".into(), "hdd".into())].into();
    });
    environment.settle();
    for (migratable, action) in [("True", "LiveMigration"), ("False", "Restart")] {
        let conditions = vec![
            kubevirt_says("MigrationRequired", "True", ""),
            kubevirt_says("LiveMigratable", migratable, ""),
        ];
        take_over(&mut environment, conditions);
        environment.settle();
        let network = "networks[eth0].networkName";
        let expected = [
            [network, "default/prod", "default/test", action],
            ["nodeSelector", "disk=ssd", "disk=hdd", action],
        ];
        assert_eq!(pending(&environment), expected);
    }
    // The guest was migrated.
    environment.pod = Some(pod("test", &json!({"disk": "hdd"})));
    environment.settle();
    assert_eq!(pending(&environment), [[""; 4]; 0]);

    // It may be where it was placed by more labels.
    edit(&mut environment, |block| block.node_selector.clear());
    environment.settle();
    assert_eq!(pending(&environment), [[""; 4]; 0]);
}

#[test]
fn a_network_that_kubevirt_does_not_take_over_needs_a_restart() {
    let mut on_prod = block();
    on_prod.networks = vec![nic("eth0", Some("prod"))];
    let mut environment = FakeCluster::new(machine(on_prod));
    environment.add_network("prod", "br0");
    environment.add_network("test", "br1");
    environment.settle();
    edit(&mut environment, |block| {
        block.networks = vec![nic("eth0", Some("test"))];
    });
    environment.pass();
    flag_restart(&mut environment);
    environment.settle();
    let field = "networks[eth0].networkName";
    let network = [field, "default/prod", "default/test", "Restart"];
    assert_eq!(pending(&environment), [network]);
}
