//! The Secret that stores the CAs, shared by all replicas.

use certs::{LiveRead, SecretData, State, StoredState, Version};
use http_body_util::BodyExt as _;
use hyper::header::DATE;
use hyper::{HeaderMap, StatusCode};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{GetParams, ObjectMeta, PostParams};
use kube::client::Body;
use kube::core::{Request, Status};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use super::api::{FIELD_MANAGER, PassError, call};

/// Reads and writes the Secret.
pub(super) struct CaSecret {
    api: Api<Secret>,
    name: String,
    /// The Secret as it was read or written last.
    last: Option<Secret>,
}

impl std::fmt::Debug for CaSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Private keys must never reach a log.
        f.debug_struct("CaSecret")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The uid and resourceVersion of a Secret: a Secret that was deleted and created again is another
/// version, too.
pub(super) fn version_of(secret: &Secret) -> Version {
    let uid = secret.uid().unwrap_or_default();
    let version = secret.resource_version().unwrap_or_default();
    Version::new(format!("{uid}/{version}"))
}

impl CaSecret {
    /// The Secret `name` in `namespace`.
    pub(super) fn new(client: Client, namespace: &str, name: String) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name,
            last: None,
        }
    }

    /// Reads the Secret and the API server's clock.
    pub(super) async fn read(&mut self) -> Result<LiveRead, PassError> {
        let (secret, now) = call("read the CA Secret", self.get()).await?;
        let data = secret.as_ref().map(data);
        let read = LiveRead {
            stored: StoredState::parse(data.as_ref()),
            version: secret.as_ref().map(version_of),
            now,
        };
        self.last = secret;
        Ok(read)
    }

    /// Like `Api::get_opt`, and also returns the time from the `Date` header of the response.
    async fn get(&self) -> kube::Result<(Option<Secret>, OffsetDateTime)> {
        let request = Request::new(self.api.resource_url());
        let request = request
            .get(&self.name, &GetParams::default())
            .map_err(kube::Error::BuildRequest)?;
        let response = self
            .api
            .clone()
            .into_client()
            .send(request.map(Body::from))
            .await?;
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        let now = date(&head.headers).unwrap_or_else(OffsetDateTime::now_utc);
        let secret = match head.status {
            StatusCode::NOT_FOUND => None,
            status if status.is_success() => {
                Some(serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?)
            }
            status => {
                let text = String::from_utf8_lossy(&body);
                let unreadable = || Status::failure(&text, "unreadable").with_code(status.as_u16());
                let status = serde_json::from_slice(&body).unwrap_or_else(|_| unreadable());
                return Err(kube::Error::Api(Box::new(status)));
            }
        };
        Ok((secret, now))
    }

    /// Writes the state over the version `expected`, or creates the Secret if that is `None`. Returns
    /// `None` if another replica wrote first.
    pub(super) async fn write(
        &mut self,
        state: &State,
        expected: Option<&Version>,
    ) -> Result<Option<Version>, PassError> {
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            dry_run: false,
        };
        let last = self.last.as_ref();
        // Uid and resourceVersion are kept in the object: the API server rejects the write if either
        // has changed.
        let current = last.filter(|secret| Some(&version_of(secret)) == expected);
        let mut secret = current.cloned().unwrap_or_else(|| Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        });
        let data = secret.data.get_or_insert_default();
        for (key, text) in state.secret_data() {
            match text {
                Some(text) => data.insert(key.to_owned(), ByteString(text.into_bytes())),
                None => data.remove(key),
            };
        }
        let written = if current.is_some() {
            let replace = self.api.replace(&self.name, &parameters, &secret);
            call("replace the CA Secret", replace).await
        } else {
            let create = self.api.create(&parameters, &secret);
            call("create the CA Secret", create).await
        };
        match written {
            Ok(secret) => {
                let version = version_of(&secret);
                self.last = Some(secret);
                Ok(Some(version))
            }
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The object that events are about.
    pub(super) fn reference(&self) -> k8s_openapi::api::core::v1::ObjectReference {
        self.last
            .as_ref()
            .map(|secret| secret.object_ref(&()))
            .unwrap_or_default()
    }
}

fn data(secret: &Secret) -> SecretData {
    let data = secret.data.iter().flatten();
    data.map(|(key, bytes)| (key.clone(), bytes.0.clone()))
        .collect()
}

/// The time of the response by the clock of the API server.
fn date(head: &HeaderMap) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(head.get(DATE)?.to_str().ok()?, &Rfc2822).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn the_date_header_is_parsed_and_an_invalid_one_is_ignored() {
        let mut head = HeaderMap::new();
        assert_eq!(date(&head), None);
        head.insert(
            DATE,
            HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT"),
        );
        assert_eq!(date(&head).unwrap().unix_timestamp(), 784_111_777);
        head.insert(DATE, HeaderValue::from_static("yesterday"));
        assert_eq!(date(&head), None);
    }
}
