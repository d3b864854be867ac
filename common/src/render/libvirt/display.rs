//! Screen of a domain, and the log of its serial console.
//!
//! VNC listens on a unix socket that libvirt makes for each run of a guest. The definition has an empty password:
//! authentication is on and nobody gets in. A password of the user is set in the running guest only, so that no file of
//! the host keeps it. Which one is recorded in the metadata of the running guest, which ends with it.

use roxmltree::Node;
use serde::{Deserialize, Serialize};

use super::xml::{Element, all, attribute, find};
use crate::api::choice::{Choice as _, DisplayType, VideoModel};
use crate::api::normalized::Normalized;

/// XML namespace of the element that records the password in effect.
pub const DISPLAY_URI: &str = "https://vitistack.io/machine/display/v1";
/// XML namespace prefix of the element; libvirt's API calls it the key.
pub const DISPLAY_KEY: &str = "vitistack-display";
/// Local name of the element.
const ELEMENT: &str = "display";
/// libvirt's name for a domain without a graphics card.
const NO_VIDEO: &str = "none";

/// The screen and the graphics card of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Display {
    /// Where the screen can be reached.
    pub screen: Screen,
    /// Model of the graphics card, `none` without one.
    pub video: String,
    /// The password in effect; only of a running guest.
    pub password: Option<AppliedPassword>,
}

/// Where a screen can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Screen {
    /// Nowhere: there is none.
    None,
    /// At a port of the host's loopback address and without authentication, as earlier releases defined it. It cannot
    /// get a password while the guest runs.
    Port,
    /// At libvirt's unix socket, locked. `None`: libvirt chooses the path at each start.
    Socket(Option<String>),
}

/// The Secret whose password is in effect. Not its content and no digest of it: a password has at most 8 characters and
/// could be guessed from a digest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AppliedPassword {
    /// Name of the Secret in the Machine's namespace.
    pub secret: String,
    /// resourceVersion of the Secret, which no two states of Secrets have in common.
    pub version: String,
}

impl AppliedPassword {
    /// The element without a prefix, for `virDomainSetMetadata`, which adds the prefix itself.
    pub fn xml(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        Element::new(ELEMENT).text(json).to_string()
    }

    fn find_in(metadata: Node<'_, '_>) -> Option<Self> {
        let mut children = metadata.children();
        let element = children.find(|node| node.has_tag_name((DISPLAY_URI, ELEMENT)))?;
        serde_json::from_str(element.text()?).ok()
    }
}

/// The device of a running guest with another password, for `virDomainUpdateDeviceFlags`. An empty one locks it.
pub fn screen_with_password(socket: &str, password: &str) -> String {
    screen(Some(socket), password).to_string()
}

fn screen(socket: Option<&str>, password: &str) -> Element {
    let listen = Element::new("listen").attr("type", "socket");
    let listen = match socket {
        Some(path) => listen.attr("socket", path),
        None => listen,
    };
    Element::new("graphics")
        .attr("type", "vnc")
        .attr("passwd", password)
        .child(listen)
}

impl Display {
    pub(super) fn of(block: &Normalized) -> Self {
        let has_screen = block.display_type() != DisplayType::None;
        // Every firmware and every guest system supports VGA without an extra driver.
        let model = block.video().unwrap_or(VideoModel::Vga);
        Self {
            screen: if has_screen {
                Screen::Socket(None)
            } else {
                Screen::None
            },
            video: if has_screen { model.as_str() } else { NO_VIDEO }.to_owned(),
            password: None,
        }
    }

    pub(super) fn parse(root: Node<'_, '_>, devices: Node<'_, '_>) -> Self {
        let socket = |graphics: Node<'_, '_>| {
            let listen = find(graphics, &["listen"])?;
            let is_socket = listen.attribute("type") == Some("socket");
            is_socket.then(|| listen.attribute("socket").map(ToOwned::to_owned))
        };
        let screen = all(devices, "graphics").next();
        let video = attribute(devices, &["video", "model"], "type");
        Self {
            screen: match screen.map(socket) {
                None => Screen::None,
                Some(None) => Screen::Port,
                Some(Some(path)) => Screen::Socket(path),
            },
            video: video.unwrap_or(NO_VIDEO).to_owned(),
            password: find(root, &["metadata"]).and_then(AppliedPassword::find_in),
        }
    }

    /// The type of the screen, as the block has it.
    pub(super) fn kind(&self) -> DisplayType {
        match self.screen {
            Screen::None => DisplayType::None,
            Screen::Port | Screen::Socket(_) => DisplayType::Vnc,
        }
    }

    /// Whether there is a graphics card, which has an address.
    pub(super) fn has_video(&self) -> bool {
        self.video != NO_VIDEO
    }

    /// The elements of the screen and the graphics card, the latter without its address.
    pub(super) fn elements(&self) -> (Option<Element>, Element) {
        let screen = match &self.screen {
            Screen::None => None,
            // libvirt chooses a free port for each guest.
            Screen::Port => Some(
                Element::new("graphics")
                    .attr("type", "vnc")
                    .attr("port", "-1")
                    .attr("autoport", "yes")
                    .attr("listen", "127.0.0.1"),
            ),
            Screen::Socket(path) => Some(screen(path.as_deref(), "")),
        };
        let model = Element::new("model").attr("type", &self.video);
        (screen, Element::new("video").child(model))
    }
}

/// The path of the file with the output of the serial console.
pub(super) fn console_log(devices: Node<'_, '_>) -> Option<String> {
    let serial = all(devices, "serial").next()?;
    attribute(serial, &["log"], "file").map(ToOwned::to_owned)
}

/// The element that keeps the output of the serial console in a file.
pub(super) fn log_element(path: &str) -> Element {
    Element::new("log").attr("file", path).attr("append", "on")
}
