//! What a guest of the family Windows gets. The tiny guest is no Windows: it tells what is on its CD-ROM.

use serde_json::json;

use crate::environment::Environment;

#[tokio::test]
async fn an_answer_file_is_on_a_cdrom_and_a_changed_one_at_the_next_start() {
    let Some(env) = Environment::new().await else {
        return;
    };
    // An IDE controller and a BIOS, for which the guest's kernel has drivers.
    let spec = |power: &str| {
        json!({
            "os": "windows", "powerState": power,
            "resources": {"cpu": {"cores": 1}, "memory": {"size": "256Mi"}},
            "domain": {
                "machine": {"type": "pc-i440fx"},
                "firmware": {"bootloader": {"efi": false}},
                "devices": {"tpm": {"enabled": false}},
            },
            "cloudInit": {"sysprep": {"secretRef": {"name": "answers"}}},
        })
    };
    let secret = |answers: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "answers", "namespace": "default"},
            "stringData": {"autounattend.xml": answers},
        })
    };
    env.apply("win", &spec("Running")).await;
    env.until("win", "to name the Secret", |win| {
        let conditions = win["status"]["conditions"].to_string();
        conditions.contains("CloudInitSecretNotFound") && conditions.contains("answers")
    })
    .await;
    env.lab.apply(&secret("<unattend/>")).await.unwrap();
    let first = env
        .until_report("win", "its answers", |report| !report.answers.is_empty())
        .await;
    assert_eq!(first.answers, "<unattend/>");
    assert_eq!(first.cdroms, ["unattend"]);
    assert_eq!(first.user_data, "");

    env.lab
        .apply(&secret("<unattend><!-- 2 --></unattend>"))
        .await
        .unwrap();
    env.apply("win", &spec("Stopped")).await;
    env.until("win", "to stop", |it| it["status"]["phase"] == "Stopped")
        .await;
    env.apply("win", &spec("Running")).await;
    let second = env
        .until_report("win", "another boot", |report| {
            report.boot != first.boot && !report.answers.is_empty()
        })
        .await;
    assert_eq!(second.answers, "<unattend><!-- 2 --></unattend>");
}
