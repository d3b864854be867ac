//! The Secret that keeps the CA, shared by every replica.

use certs::{Authority, Stored};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt as _};

use super::{FIELD_MANAGER, PassError, call};

/// Keys of the Secret.
const CERTIFICATE_KEY: &str = "ca.crt";
const PRIVATE_KEY: &str = "ca.key";

/// Where the CA is kept.
#[derive(Debug)]
pub struct CaSecret {
    api: Api<Secret>,
    name: String,
}

/// The uid and version of the Secret that an authority was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    uid: Option<String>,
    version: Option<String>,
}

impl Version {
    pub(super) fn of(secret: &Secret) -> Self {
        Self {
            uid: secret.uid(),
            version: secret.resource_version(),
        }
    }
}

impl CaSecret {
    /// The Secret `name` of `namespace`.
    pub fn new(client: Client, namespace: &str, name: String) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name,
        }
    }

    /// Stores a CA in place of what was read. `None`: another replica was faster.
    pub(super) async fn store(
        &self,
        authority: &Authority,
        current: Option<&Secret>,
    ) -> Result<Option<Version>, PassError> {
        let Stored { certificate, key } = authority.stored().clone();
        let data = [(CERTIFICATE_KEY, certificate), (PRIVATE_KEY, key)]
            .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            dry_run: false,
        };
        // Uid and resourceVersion stay in: the API server refuses when either has moved on.
        let mut secret = current.cloned().unwrap_or_else(|| Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        });
        secret.data.get_or_insert_default().extend(data);
        let written = if current.is_some() {
            let replace = self.api.replace(&self.name, &parameters, &secret);
            call("replace the CA Secret", replace).await
        } else {
            let create = self.api.create(&parameters, &secret);
            call("create the CA Secret", create).await
        };
        match written {
            Ok(secret) => Ok(Some(Version::of(&secret))),
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What the Secret holds, unchecked.
pub(super) fn stored(secret: &Secret) -> Stored {
    let text = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        bytes
            .map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned())
            .unwrap_or_default()
    };
    Stored {
        certificate: text(CERTIFICATE_KEY),
        key: text(PRIVATE_KEY),
    }
}
