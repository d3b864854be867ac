//! Screen and serial console of a Machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::{DisplayType, VideoModel};
use crate::api::{cel, schema};

/// Screen of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [cel::no_display(&["video", "passwordSecretRef"])]))]
pub struct Display {
    /// Protocol of the screen: vnc (default), or none for a machine without a screen.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DisplayType>")]
    pub kind: Option<String>,
    /// Model of the graphics card: vga, virtio or bochs. Default: vga on libvirt, KubeVirt's own choice on KubeVirt,
    /// where the field needs KubeVirt 1.9 or its feature gate VideoConfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<VideoModel>")]
    pub video: Option<String>,
    /// Secret with the password that VNC asks for, under the key display-password: 1 to 8 printable ASCII characters.
    /// libvirt only. A new password takes effect while the machine runs. Default: none, and nobody gets in but
    /// those whom the operator lets in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_secret_ref: Option<LocalSecretRef>,
}

/// Screen in a template: without the password, because Secrets are objects of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [cel::no_display(&["video"])]))]
pub struct TemplateDisplay {
    /// Protocol of the screen: vnc or none.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DisplayType>")]
    pub kind: Option<String>,
    /// Model of the graphics card: vga, virtio or bochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<VideoModel>")]
    pub video: Option<String>,
}

impl From<TemplateDisplay> for Display {
    fn from(TemplateDisplay { kind, video }: TemplateDisplay) -> Self {
        Self {
            kind,
            video,
            password_secret_ref: None,
        }
    }
}

/// A Secret in the Machine's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalSecretRef {
    /// Name of the Secret in the Machine's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>", required)]
    pub name: Option<String>,
}

/// Serial console of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Console {
    /// Whether the output of the serial console is kept: on KubeVirt in the container guest-console-log of the guest's
    /// pod, on libvirt in a file of the pool consoleLogPool of the LibvirtHost. Default: false on libvirt, the
    /// cluster's setting on KubeVirt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<bool>,
}
