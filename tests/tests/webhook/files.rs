//! Certificates in files of a mounted Secret, which another program writes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use certs::{CA_LIFETIME, Ca, LEAF_LIFETIME, ServerNames};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use lab::{Lab, OPERATOR_NAMESPACE, ProgramUnderTest, wait};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::{admit, lab, reviewed, unready};

/// A mounted Secret: kubelet replaces all files at once by changing a symbolic link.
struct Mount {
    folder: PathBuf,
    swaps: u32,
}

impl Mount {
    fn new(folder: PathBuf) -> Self {
        fs::create_dir(&folder).unwrap();
        for file in ["tls.crt", "tls.key"] {
            symlink(format!("..data/{file}"), folder.join(file)).unwrap();
        }
        Self { folder, swaps: 0 }
    }

    /// Writes a new folder, replaces the link, and removes the former folder.
    fn swap(&mut self, certificate: &str, key: &str) {
        let was = self.folder.join(format!("..{}", self.swaps));
        self.swaps += 1;
        let now = format!("..{}", self.swaps);
        fs::create_dir(self.folder.join(&now)).unwrap();
        fs::write(self.folder.join(&now).join("tls.crt"), certificate).unwrap();
        fs::write(self.folder.join(&now).join("tls.key"), key).unwrap();
        let link = self.folder.join("..data_tmp");
        symlink(&now, &link).unwrap();
        fs::rename(link, self.folder.join("..data")).unwrap();
        if was.exists() {
            fs::remove_dir_all(was).unwrap();
        }
    }
}

/// A CA certificate, and a leaf certificate of it with its key.
fn issued() -> (String, String, String) {
    let now = OffsetDateTime::now_utc();
    let ca = Ca::generate("Somebody's CA", now, CA_LIFETIME).unwrap();
    let names = ServerNames::new(["127.0.0.1".to_owned()]).unwrap();
    let leaf = ca.sign(&names, now, LEAF_LIFETIME).unwrap();
    let ca = ca.certificate_pem().to_owned();
    (ca, leaf.certificate_pem(), leaf.key_pem().to_owned())
}

/// Writes `caBundle` everywhere, as cert-manager's cainjector does.
async fn inject(lab: &Lab, ca: &str) {
    let bytes = ByteString(ca.as_bytes().to_vec());
    for (kind, entries) in [("mutating", 3), ("validating", 4)] {
        let each = (0..entries).map(|index| {
            let path = format!("/webhooks/{index}/clientConfig/caBundle");
            json!({"op": "add", "path": path, "value": bytes})
        });
        let patch = each.collect::<Value>().to_string();
        let kind = format!("{kind}webhookconfiguration");
        let arguments = [
            "patch",
            &kind,
            "machine-webhook",
            "--type=json",
            "-p",
            &patch,
        ];
        lab.kubectl().run(&arguments).await.unwrap().ok().unwrap();
    }
}

/// Waits until a client that trusts `ca` alone is served.
async fn served(lab: &Lab, ca: &str) {
    let address = lab.webhook_address();
    wait::until("the certificate of the files", async || {
        Ok(admit(address, ca)
            .await
            .map_err(|error| format!("{error:#}")))
    })
    .await
    .unwrap();
}

async fn faults(webhook: &mut ProgramUnderTest) -> String {
    let metrics = webhook.metrics().await.unwrap();
    let name = "machine_webhook_certificate_last_error_timestamp_seconds{fault=\"files\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().to_owned()
}

#[tokio::test]
async fn swapped_certificate_files_are_served_and_a_mismatched_pair_is_reported() {
    let mut lab = lab().await;
    let mut mount = Mount::new(lab.path("tls"));
    let (ca, certificate, key) = issued();
    mount.swap(&certificate, &key);
    lab.register_webhooks().await.unwrap();
    let folder = mount.folder.display().to_string();
    let settings = [
        ("TLS_CERT_DIR", folder.as_str()),
        ("CERTIFICATE_POLL", "200ms"),
    ];
    let mut webhook = lab.start_webhook(&settings).await.unwrap();
    unready(&mut webhook, |reason| {
        reason
            == "caBundle: a caBundle does not trust the certificate of the files; write it with \
                 the files, or let cert-manager's cainjector write it\n"
    })
    .await;
    inject(&lab, &ca).await;
    webhook.ready().await.unwrap();
    served(&lab, &ca).await;
    reviewed(&lab).await.unwrap();

    let mut last = ca;
    for _ in 0..3 {
        let (ca, certificate, key) = issued();
        // In the right order: first the bundle, then the certificate.
        inject(&lab, &format!("{last}{ca}")).await;
        mount.swap(&certificate, &key);
        served(&lab, &ca).await;
        reviewed(&lab).await.unwrap();
        last = ca;
    }

    // A certificate with the key of another one.
    assert_eq!(faults(&mut webhook).await, "0");
    let (_, other, _) = issued();
    mount.swap(&other, &key);
    wait::until("the mismatch to be reported", async || {
        let faults = faults(&mut webhook).await;
        Ok(if faults == "0" { Err(faults) } else { Ok(()) })
    })
    .await
    .unwrap();
    served(&lab, &last).await;
    reviewed(&lab).await.unwrap();
    webhook.ready().await.unwrap();
    let lines = webhook.log_lines();
    let warnings = lines.iter().filter(|line| line["level"] == "warn");
    let warnings: Vec<_> = warnings
        .map(|line| line["error"].as_str().unwrap_or_default())
        .collect();
    let expected = format!(
        "tls.crt and tls.key in {folder} cannot be served: the key does not match the certificate"
    );
    assert_eq!(warnings, [expected]);

    // It creates no CA.
    let secrets: Api<Secret> = Api::namespaced(lab.client().clone(), OPERATOR_NAMESPACE);
    assert!(
        secrets
            .get_opt("machine-webhook-ca")
            .await
            .unwrap()
            .is_none()
    );
}
