//! The Secret that keeps the CAs, shared by every replica.

use certs::{Entries, Found, Reading, State};
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

use super::{FIELD_MANAGER, PassError, call};

/// Where the CAs are kept.
pub struct CaSecret {
    api: Api<Secret>,
    name: String,
    /// As it was read last.
    last: Option<Secret>,
}

impl std::fmt::Debug for CaSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Its content must never reach a log.
        f.debug_struct("CaSecret")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The uid and version of a Secret.
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
            last: None,
        }
    }

    /// Reads it, and the API server's clock.
    pub(super) async fn read(&mut self) -> Result<Found<certs::Authority, Version>, PassError> {
        let (secret, now) = call("read the CA Secret", self.get()).await?;
        let entries = secret.as_ref().map(entries);
        let found = Found {
            stored: Reading::parse(entries.as_ref()),
            version: secret.as_ref().map(Version::of),
            now,
        };
        self.last = secret;
        Ok(found)
    }

    /// What `Api::get_opt` does, with the head of the answer.
    async fn get(&self) -> kube::Result<(Option<Secret>, OffsetDateTime)> {
        let request = Request::new(self.api.resource_url());
        let request = request
            .get(&self.name, &GetParams::default())
            .map_err(kube::Error::BuildRequest)?;
        let answer = self
            .api
            .clone()
            .into_client()
            .send(request.map(Body::from))
            .await?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        let now = date(&head.headers).unwrap_or_else(OffsetDateTime::now_utc);
        let secret = match head.status {
            StatusCode::NOT_FOUND => None,
            status if status.is_success() => {
                Some(serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?)
            }
            status => {
                let told = String::from_utf8_lossy(&body);
                let unreadable = || Status::failure(&told, "unreadable").with_code(status.as_u16());
                let status = serde_json::from_slice(&body).unwrap_or_else(|_| unreadable());
                return Err(kube::Error::Api(Box::new(status)));
            }
        };
        Ok((secret, now))
    }

    /// Stores a state over the version that was read. `None`: another replica was faster.
    pub(super) async fn write(
        &mut self,
        state: &State,
        over: Option<&Version>,
    ) -> Result<Option<Version>, PassError> {
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            dry_run: false,
        };
        let last = self.last.as_ref();
        // Uid and resourceVersion stay in: the API server refuses when either has moved on.
        let current = last.filter(|secret| Some(&Version::of(secret)) == over);
        let mut secret = current.cloned().unwrap_or_else(|| Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        });
        let data = secret.data.get_or_insert_default();
        for (key, text) in state.entries() {
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
                let version = Version::of(&secret);
                self.last = Some(secret);
                Ok(Some(version))
            }
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What events are about.
    pub(super) fn reference(&self) -> k8s_openapi::api::core::v1::ObjectReference {
        self.last
            .as_ref()
            .map(|secret| secret.object_ref(&()))
            .unwrap_or_default()
    }
}

fn entries(secret: &Secret) -> Entries {
    let data = secret.data.iter().flatten();
    data.map(|(key, bytes)| (key.clone(), bytes.0.clone()))
        .collect()
}

/// When the API server answered.
fn date(head: &HeaderMap) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(head.get(DATE)?.to_str().ok()?, &Rfc2822).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn the_date_of_an_answer_is_read() {
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
