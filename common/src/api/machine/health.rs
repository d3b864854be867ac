//! How a guest that no longer works is noticed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::WatchdogAction;

/// A watchdog of the virtual hardware, an i6300esb: a timer that the guest resets again and again. Software in the guest,
/// such as systemd with RuntimeWatchdogSec, starts it; until then it does nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Watchdog {
    /// What happens to the guest when the timer runs out: Reset restarts it, PowerOff cuts its power, Shutdown asks it to
    /// shut down. Default: the template's value, else Reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<WatchdogAction>")]
    pub action: Option<String>,
}
