//! Alerts in the evaluator of Prometheus, over what the running programs export: they fire while things go wrong in the
//! lab, and are resolved when these are in order again.

use std::{collections::BTreeMap, fs, path::Path};

use common::render::libvirt::{VolumeFormat, volume_name};
use lab::{
    OPERATOR_NAMESPACE, ProgramUnderTest, Scenario,
    objects::{HOST, LEASE},
    wait,
};
use serde_json::{Value, json};

use crate::alerts::evaluate;
use crate::environment::{Environment, machine};

/// Values of an exposition by series.
type Scrape = BTreeMap<String, String>;

/// What both programs export.
async fn scrape(programs: [&mut ProgramUnderTest; 2]) -> Scrape {
    let mut all = Scrape::new();
    for program in programs {
        let text = program.metrics().await.unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let values = lines.filter_map(|line| line.rsplit_once(' '));
        // A gauge without a value, of which promtool has no notation, meets no alert either.
        let numbers = values.filter(|(_, value)| *value != "NaN");
        all.extend(numbers.map(|(series, value)| (series.to_owned(), value.to_owned())));
    }
    all
}

/// The samples of every series in the notation of promtool, one a minute: for each period its minutes, and what was
/// scraped then. `None`: no program was there.
fn samples(periods: &[(usize, Option<&Scrape>)]) -> Vec<Value> {
    let scrapes = periods.iter().filter_map(|(_, scrape)| *scrape);
    let mut series: Vec<_> = scrapes.flat_map(Scrape::keys).collect();
    series.sort();
    series.dedup();
    let values = |series: &String| {
        let mut was_there = false;
        let mut parts = Vec::new();
        for (minutes, scrape) in periods {
            match scrape.and_then(|scrape| scrape.get(series)) {
                Some(value) => parts.push(format!("{value}x{}", minutes - 1)),
                // What was scraped before and is missing now is stale at once.
                None if was_there => parts.push(format!("stale _x{}", minutes - 1)),
                None => parts.push(format!("_x{minutes}")),
            }
            was_there = scrape.is_some_and(|scrape| scrape.contains_key(series));
        }
        json!({"series": series, "values": parts.join(" ")})
    };
    series.into_iter().map(values).collect()
}

/// Exactly these alerts fire at this minute.
fn firing(minute: usize, alerts: &[&str]) -> Value {
    let samples = alerts.iter();
    let samples =
        samples.map(|alert| json!({"labels": format!("{{alertname={alert:?}}}"), "value": 1}));
    json!({
        "expr": r#"group by (alertname) (ALERTS{alertstate="firing"})"#,
        "eval_time": format!("{minute}m"),
        "exp_samples": samples.collect::<Vec<_>>(),
    })
}

/// The address of a host of libvirt's test driver: 4 GiB of memory, a domain that somebody made with these MiB of it, and
/// a pool of 100 GiB with one volume of these GiB.
fn test_host(folder: &Path, file: &str, memory: u64, (volume, size): (&str, u64)) -> String {
    let text = format!(
        "<node>
          <cpu><mhz>2000</mhz><model>x86_64</model><active>8</active><nodes>1</nodes>
            <sockets>1</sockets><cores>8</cores><threads>1</threads></cpu>
          <memory>4194304</memory>
          <domain type='test'><name>other</name><memory unit='MiB'>{memory}</memory><vcpu>1</vcpu>
            <os><type>hvm</type></os></domain>
          <pool type='dir'><name>vms</name><target><path>/vms</path></target>
            <volume type='file'><name>{volume}</name><key>/vms/{volume}</key>
              <capacity unit='GiB'>{size}</capacity><allocation unit='GiB'>{size}</allocation>
              <target><path>/vms/{volume}</path><format type='raw'/></target></volume>
          </pool>
        </node>"
    );
    let path = folder.join(file);
    fs::write(&path, text).unwrap();
    format!("test://{}", path.display())
}

/// Waits until the controller exports each of these lines.
async fn exports(controller: &mut ProgramUnderTest, lines: &[&str]) {
    wait::until(&format!("{lines:?}"), async || {
        let text = controller.metrics().await?;
        let has = |line: &&&str| !text.lines().any(|it| it == **line);
        let missing: Vec<_> = lines.iter().filter(has).collect();
        Ok(if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("{missing:?} in {text}"))
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn alerts_fire_while_things_go_wrong_in_the_lab_and_are_resolved_afterwards() {
    let mut env = Environment::new().await;
    let folder = tempfile::tempdir().unwrap();
    let gone = volume_name("default", "gone", "uid", "root", VolumeFormat::Raw);
    let full = test_host(folder.path(), "full.xml", 4000, (&gone, 95));
    let roomy = test_host(folder.path(), "roomy.xml", 1024, ("somebodys", 10));
    let hosts = env.lab.objects(HOST, "");
    for (name, uri) in [("alpha", full.as_str()), ("away", "test:///no/such/file")] {
        let storage = json!([{"storageClass": "local", "pool": "vms"}]);
        let host = json!({
            "apiVersion": "vitistack.io/v1alpha1", "kind": "LibvirtHost",
            "metadata": {"name": name},
            "spec": {"uri": uri, "virtType": "qemu", "storage": storage},
        });
        hosts.create(&host).await.unwrap();
    }
    let small = json!({"template": "small"});
    let image = json!({"url": "https://images.example.com/wrong"});
    let with_image = json!({
        "template": "small", "disks": [{"name": "root", "size": "20Gi", "image": image}],
    });
    let grows = json!({"template": "small", "resources": {"cpu": {"maxSockets": 4}}});
    env.simulator.set_update_methods(&[]).await.unwrap();
    for (name, scenario, spec) in [
        ("grows", Scenario::Happy, &grows),
        ("refused", Scenario::PodOverQuota, &small),
        ("unbound", Scenario::PvcPending, &small),
        ("wrong", Scenario::ImportFails, &with_image),
    ] {
        env.simulator.set("default", name, scenario);
        env.apply(&machine(name, spec)).await;
    }
    let broken = [
        r#"kubevirt_operator_libvirt_host_up{host="away"} 0"#,
        r#"kubevirt_operator_libvirt_host_up{host="alpha"} 1"#,
        r#"kubevirt_operator_libvirt_host_unlisted_volumes{host="alpha"} 1"#,
        r#"kubevirt_operator_libvirt_pool_disks{host="alpha",pool="vms"} 1"#,
        r#"kubevirt_operator_machines_with_error{error_type="ImageImportFailed"} 1"#,
        r#"kubevirt_operator_machines_with_error{error_type="VMFailed"} 1"#,
        r#"kubevirt_operator_kubevirt_settings_missing{setting="workloadUpdateMethods"} 1"#,
        r#"kubevirt_operator_kubevirt_settings_missing{setting="permittedHostDevices"} 0"#,
    ];
    exports(&mut env.controller, &broken).await;
    let broken = scrape([&mut env.controller, &mut env.webhook]).await;

    // Repaired while the controller is away, and another holds the Lease when it is back.
    assert!(env.controller.stop().await.unwrap().success());
    for host in ["alpha", "away"] {
        let repaired = json!({"spec": {"uri": roomy}});
        hosts.merge(host, &repaired).await.unwrap();
    }
    env.simulator.set_all(Scenario::Happy);
    let methods = ["LiveMigrate"];
    env.simulator.set_update_methods(&methods).await.unwrap();
    let leases = env.lab.objects(LEASE, OPERATOR_NAMESPACE);
    let taken = json!({"spec": {
        "holderIdentity": "another", "leaseDurationSeconds": 3600,
        "renewTime": "2100-01-01T00:00:00.000000Z",
    }});
    leases.merge("kubevirt-operator", &taken).await.unwrap();
    env.controller.start_again().unwrap();
    exports(&mut env.controller, &["kubevirt_operator_leading 0"]).await;
    let led_by_nobody = scrape([&mut env.controller, &mut env.webhook]).await;

    leases.delete("kubevirt-operator").await.unwrap();
    let repaired = [
        "kubevirt_operator_leading 1",
        r#"kubevirt_operator_libvirt_host_up{host="away"} 1"#,
        r#"kubevirt_operator_libvirt_host_up{host="alpha"} 1"#,
        r#"kubevirt_operator_libvirt_host_unlisted_volumes{host="alpha"} 0"#,
        r#"kubevirt_operator_libvirt_host_allocated{host="alpha",resource="memory"} 1073741824"#,
        r#"kubevirt_operator_machines_with_error{error_type="ImageImportFailed"} 0"#,
        r#"kubevirt_operator_machines_with_error{error_type="VMFailed"} 0"#,
        r#"kubevirt_operator_machines_total{phase="Running",template="small"} 4"#,
        r#"kubevirt_operator_kubevirt_settings_missing{setting="workloadUpdateMethods"} 0"#,
    ];
    exports(&mut env.controller, &repaired).await;
    let repaired = scrape([&mut env.controller, &mut env.webhook]).await;

    let periods = [
        (40, Some(&broken)),
        (10, None),
        (10, Some(&led_by_nobody)),
        (40, Some(&repaired)),
    ];
    let test = json!({
        "interval": "1m",
        "input_series": samples(&periods),
        "promql_expr_test": [
            firing(36, &[
                "KubeVirtSettingMissing",
                "LibvirtHostFull",
                "LibvirtHostUnreachable",
                "LibvirtHostVolumesUnlisted",
                "LibvirtPoolNearlyFull",
                "MachineImagesNotImported",
                "MachinesFailed",
                "MachinesStayInCreating",
            ]),
            firing(48, &["MachineControllerDown", "MachineWebhookDown"]),
            firing(53, &["MachineControllerNobodyLeads"]),
            firing(98, &[]),
        ],
    });
    evaluate(vec![test], folder.path()).await;
}
