//! Changes of a domain's description, in the text.

use common::render::libvirt::{DISPLAY_KEY, DISPLAY_URI, METADATA_KEY, METADATA_URI};
use roxmltree::{Document, Node};

/// Our metadata element without prefixes, as libvirt returns it.
pub(super) fn metadata(domain: &str) -> Option<String> {
    let document = Document::parse(domain).unwrap();
    let text = &domain[own_metadata(&document)?.range()];
    let mut bare = text
        .replace(&format!("<{METADATA_KEY}:"), "<")
        .replace(&format!("</{METADATA_KEY}:"), "</");
    for quote in ['\'', '"'] {
        bare = bare.replace(
            &format!(" xmlns:{METADATA_KEY}={quote}{METADATA_URI}{quote}"),
            "",
        );
    }
    Some(bare)
}

/// The domain with that metadata element of ours, or without one.
pub(super) fn with_metadata(domain: &str, element: Option<&str>) -> String {
    let document = Document::parse(domain).unwrap();
    let element = element.map(prefixed).unwrap_or_default();
    if let Some(old) = own_metadata(&document) {
        return replaced(domain, old, &element);
    }
    let metadata = child(document.root_element(), "metadata");
    match metadata.filter(Node::has_children) {
        Some(metadata) => inserted(domain, metadata, &element),
        None => inserted(
            domain,
            document.root_element(),
            &format!("<metadata>{element}</metadata>"),
        ),
    }
}

/// The domain with the socket that libvirt makes for a screen at a start.
pub(super) fn with_socket(domain: &str) -> String {
    let document = Document::parse(domain).unwrap();
    let is_socket = |node: &Node<'_, '_>| {
        node.has_tag_name("listen") && node.attribute("type") == Some("socket")
    };
    let Some(listen) = document.descendants().find(is_socket) else {
        return domain.to_owned();
    };
    let made = "<listen type='socket' socket='/var/lib/libvirt/qemu/domain/vnc.sock'/>";
    replaced(domain, listen, made)
}

/// The domain with that record of the password of its screen, or without one.
pub(super) fn with_applied_password(domain: &str, element: Option<&str>) -> String {
    let document = Document::parse(domain).unwrap();
    let metadata = child(document.root_element(), "metadata").expect("metadata");
    let element = element.map(|bare| {
        let open = format!("<{DISPLAY_KEY}:display xmlns:{DISPLAY_KEY}='{DISPLAY_URI}'");
        let bare = bare.trim().replacen("<display", &open, 1);
        bare.replace("</display>", &format!("</{DISPLAY_KEY}:display>"))
    });
    let element = element.unwrap_or_default();
    let mut children = metadata.children();
    match children.find(|it| it.tag_name().namespace() == Some(DISPLAY_URI)) {
        Some(old) => replaced(domain, old, &element),
        None => inserted(domain, metadata, &element),
    }
}

/// The domain with one device more.
pub(super) fn with_device(domain: &str, device: &str) -> String {
    let document = Document::parse(domain).unwrap();
    let devices = child(document.root_element(), "devices").expect("devices");
    inserted(domain, devices, device)
}

/// The domain without the device, or with `with` in its place; nothing where there is no such device.
pub(super) fn exchanged(domain: &str, device: &str, with: &str) -> Option<String> {
    let document = Document::parse(domain).unwrap();
    let wanted = Document::parse(device).unwrap();
    let wanted = wanted.root_element();
    let devices = child(document.root_element(), "devices")?;
    let found = devices.children().find(|it| {
        it.has_tag_name(wanted.tag_name().name()) && identity(*it) == identity(wanted)
    })?;
    Some(replaced(domain, found, with))
}

/// The domain with other text in an element below its root.
pub(super) fn with_text(domain: &str, name: &str, text: &str) -> String {
    let document = Document::parse(domain).unwrap();
    let element = format!("<{name}>{text}</{name}>");
    match child(document.root_element(), name) {
        Some(old) => replaced(domain, old, &element),
        None => inserted(domain, document.root_element(), &element),
    }
}

/// The domain with another number of vCPUs, up to as many as it can have.
pub(super) fn with_vcpus(domain: &str, count: u32) -> String {
    let document = Document::parse(domain).unwrap();
    let old = child(document.root_element(), "vcpu").expect("vcpu");
    let most = old.text().unwrap_or_default();
    replaced(
        domain,
        old,
        &format!("<vcpu current='{count}'>{most}</vcpu>"),
    )
}

/// The domain with the attribute of its machine type replaced.
pub(super) fn with_machine(domain: &str, machine: &str) -> String {
    let document = Document::parse(domain).unwrap();
    let kind = child(document.root_element(), "os").and_then(|it| child(it, "type"));
    let range = kind
        .and_then(|it| it.attribute_node("machine"))
        .expect("a machine type")
        .range_value();
    format!(
        "{}{machine}{}",
        &domain[..range.start],
        &domain[range.end..]
    )
}

/// Identity of a device in a description: its target, its MAC address, or its name.
fn identity(device: Node<'_, '_>) -> Option<String> {
    let attribute =
        |element, name| child(device, element).and_then(|it| it.attribute(name).map(str::to_owned));
    if device.has_tag_name("interface") {
        return attribute("mac", "address").map(|it| it.to_lowercase());
    }
    attribute("target", "dev").or_else(|| attribute("alias", "name"))
}

fn own_metadata<'a, 'input>(document: &'a Document<'input>) -> Option<Node<'a, 'input>> {
    child(document.root_element(), "metadata")?
        .children()
        .find(|it| it.tag_name().namespace() == Some(METADATA_URI))
}

fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|it| it.has_tag_name(name))
}

/// A bare element with our name space, as libvirt keeps it.
fn prefixed(bare: &str) -> String {
    let document = Document::parse(bare).unwrap();
    let name = document.root_element().tag_name().name();
    let open = format!("<{METADATA_KEY}:{name} xmlns:{METADATA_KEY}='{METADATA_URI}'");
    let named = bare.trim().replacen(&format!("<{name}"), &open, 1);
    match named.strip_suffix(&format!("</{name}>")) {
        Some(content) => format!("{content}</{METADATA_KEY}:{name}>"),
        None => named,
    }
}

fn replaced(text: &str, node: Node<'_, '_>, with: &str) -> String {
    let range = node.range();
    format!("{}{with}{}", &text[..range.start], &text[range.end..])
}

/// At the end of what is in the element.
fn inserted(text: &str, into: Node<'_, '_>, what: &str) -> String {
    let range = into.range();
    let element = &text[range.clone()];
    if let Some(open) = element.strip_suffix("/>") {
        let name = into.tag_name().name();
        return format!(
            "{}{open}>{what}</{name}>{}",
            &text[..range.start],
            &text[range.end..]
        );
    }
    let close = range.start + element.rfind("</").expect("an end tag");
    format!("{}{what}{}", &text[..close], &text[close..])
}
