//! Credentials of an image server: a Secret of the Machine's namespace, read when a fetch begins.
//!
//! ```text
//! token ──────────────▶ Authorization: Bearer <token>
//! username, password ─▶ Authorization: Basic <base64 of username:password>
//! ```
//! They are sent over https to the server of the image's URL alone, and are in no log and no message.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use controller_core::client::GuardedClient;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use ureq::http::HeaderValue;

/// Longest value of a key. Servers refuse headers that are longer than 8 to 16 KiB.
const VALUE_MAX: usize = 8 << 10;

/// What a request to an image server is authorized with. `Debug` does not show it.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    /// Name of the Secret, for messages.
    pub(super) secret: String,
    /// The value of the header `Authorization`.
    pub(super) header: HeaderValue,
}

/// Reads the credentials from a Secret. The error says what it lacks, and nothing of its content.
pub(crate) async fn read(
    api: &GuardedClient,
    namespace: &str,
    name: &str,
) -> Result<Credentials, String> {
    let secrets: Api<core::Secret> = Api::namespaced(api.client(), namespace);
    let secret = api.read(secrets.get_opt(name)).await;
    let secret = secret.map_err(|error| {
        format!(
            "Secret '{name}', which image.secretRef names, cannot be read: {}",
            error.message()
        )
    })?;
    let secret = secret.ok_or_else(|| {
        format!("Secret '{name}', which image.secretRef names, does not exist: create it")
    })?;
    Credentials::of(name, &secret.data.unwrap_or_default())
}

impl Credentials {
    /// The credentials in the data of a Secret.
    pub(super) fn of(secret: &str, data: &BTreeMap<String, ByteString>) -> Result<Self, String> {
        let wrong = |why: &str| format!("Secret '{secret}', which image.secretRef names, {why}");
        let value = |key: &str| data.get(key).map(|value| value.0.as_slice());
        let text = |key: &str, bytes: &[u8]| {
            let is_header = |byte: &u8| (0x20..0x7f).contains(byte);
            if bytes.is_empty() || bytes.len() > VALUE_MAX || !bytes.iter().all(is_header) {
                return Err(wrong(&format!(
                    "has a key '{key}' that cannot be sent: write 1 to {VALUE_MAX} characters of ASCII without a line break"
                )));
            }
            Ok(String::from_utf8_lossy(bytes).into_owned())
        };
        let authorization = match (value("token"), value("username"), value("password")) {
            (Some(token), None, None) => format!("Bearer {}", text("token", token)?),
            (None, Some(user), Some(password)) => {
                let (user, password) = (text("username", user)?, text("password", password)?);
                if user.contains(':') {
                    // It would end the name, and the rest would become part of the password.
                    return Err(wrong(
                        "has a key 'username' with a colon, which basic authentication cannot send: remove the colon",
                    ));
                }
                format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
            }
            _ => {
                return Err(wrong(
                    "has neither the key 'token' alone nor the two keys 'username' and 'password': write one of these",
                ));
            }
        };
        let mut header = HeaderValue::from_str(&authorization)
            .map_err(|_| wrong("has a value that cannot be sent in a header"))?;
        header.set_sensitive(true);
        Ok(Self {
            secret: secret.to_owned(),
            header,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(data: &[(&str, &str)]) -> Result<Credentials, String> {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), bytes(value)));
        Credentials::of("images", &data.collect())
    }

    #[test]
    fn a_secret_has_a_bearer_token_or_a_user_with_a_password() {
        let header = |data: &[(&str, &str)]| of(data).unwrap().header;
        assert_eq!(header(&[("token", "abc.def")]), "Bearer abc.def");
        // The example of RFC 7617, section 2.
        let basic = header(&[("username", "Aladdin"), ("password", "open sesame")]);
        assert_eq!(basic, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }

    #[test]
    fn a_secret_that_cannot_be_sent_is_refused_without_its_content() {
        let long = "x".repeat(VALUE_MAX + 1);
        let cases: &[(&[(&str, &str)], &str)] = &[
            (&[], "has neither the key 'token'"),
            (&[("Token", "hidden")], "has neither the key 'token'"),
            (&[("username", "hidden")], "has neither the key 'token'"),
            (
                &[("token", "hidden"), ("username", "a"), ("password", "b")],
                "has neither the key 'token' alone",
            ),
            (&[("token", "")], "has a key 'token' that cannot be sent"),
            (&[("token", "hidden\n")], "without a line break"),
            (
                &[("token", "hidden\r\nX-Forged: 1")],
                "without a line break",
            ),
            (&[("token", &long)], "1 to 8192 characters"),
            (
                &[("username", "a"), ("password", "hidden\u{e9}")],
                "has a key 'password' that cannot be sent",
            ),
            (
                &[("username", "a:hidden"), ("password", "b")],
                "remove the colon",
            ),
        ];
        for (data, expected) in cases {
            let why = of(data).unwrap_err();
            assert!(
                why.starts_with("Secret 'images', which image.secretRef names, "),
                "{why}"
            );
            assert!(why.contains(expected), "{why}");
            assert!(!why.contains("hidden") && !why.contains("Forged"), "{why}");
        }
    }

    #[test]
    fn no_debug_output_shows_credentials() {
        let credentials = of(&[("token", "hidden")]).unwrap();
        let shown = format!("{credentials:?} {:?}", credentials.header);
        assert!(!shown.contains("hidden"), "{shown}");
    }
}
