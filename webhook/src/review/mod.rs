//! The `AdmissionReview`: the request of the API server and the response of the webhook.

mod request;
mod response;

pub(crate) use self::request::{DELETION_TIMESTAMP, ObjectHead, Spec};
pub use self::request::{DecodeError, GroupKind, Operation, Request, UserInfo};
pub(crate) use self::response::codes;
pub use self::response::{Failure, Response};
