//! Credentials of a host: a Secret, read when a connection is made, and with each full poll.

use controller_core::client::GuardedClient;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::access::Credentials;
use crate::libvirt_host::LibvirtHost;

/// Reads the credentials of a host; `None`: its URI needs none. The error names what is missing.
pub(super) async fn read_credentials(
    api: &GuardedClient,
    host: &LibvirtHost,
) -> Result<Option<Credentials>, String> {
    let Some(reference) = &host.spec.credentials_secret_ref else {
        return Ok(None);
    };
    let secret_name = format!("Secret {}/{}", reference.namespace, reference.name);
    let secrets: Api<Secret> = Api::namespaced(api.client(), &reference.namespace);
    let secret = api.read(secrets.get_opt(&reference.name)).await;
    let secret =
        secret.map_err(|error| format!("{secret_name} cannot be read: {}", error.message()))?;
    let data = secret.and_then(|secret| secret.data).ok_or_else(|| {
        format!("{secret_name}, which spec.credentialsSecretRef names, does not exist: create it")
    })?;
    let key = |name: &str| -> Result<String, String> {
        let bytes = data
            .get(name)
            .ok_or_else(|| format!("{secret_name} has no key '{name}': add it"))?;
        String::from_utf8(bytes.0.clone())
            .map_err(|_| format!("key '{name}' of {secret_name} is no text"))
    };
    if data.contains_key("ssh-privatekey") {
        return Ok(Some(Credentials::Ssh {
            private_key: key("ssh-privatekey")?,
            known_hosts: key("known_hosts")?,
        }));
    }
    Ok(Some(Credentials::Tls {
        ca: key("ca.crt")?,
        certificate: key("tls.crt")?,
        key: key("tls.key")?,
    }))
}
