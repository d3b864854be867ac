//! Screen and serial console.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fixtures::{self, WEB};
use super::schema;
use crate::api::choice::{Choice as _, DisplayType, VideoModel};
use crate::api::normalized::{NormalizedConsole, NormalizedDisplay};
use crate::render::CloudInitPlan;
use crate::render::kubevirt::{VirtualMachineInput, virtual_machine};

fn devices(kind: DisplayType, video: Option<VideoModel>, log: Option<bool>) -> Value {
    let mut block = fixtures::block();
    block.display = Some(NormalizedDisplay {
        password_secret_ref: None,
        kind,
        video,
    });
    block.console = log.map(|log| NormalizedConsole { log });
    let vm = virtual_machine(&VirtualMachineInput {
        machine: WEB,
        block: &block,
        cloud_init: &CloudInitPlan::default(),
        labels: &BTreeMap::new(),
        attachments: &BTreeMap::new(),
        secret_revisions: &BTreeMap::new(),
    });
    let vm = serde_json::to_value(vm).unwrap();
    if let Some(validator) = schema::virtual_machine() {
        let errors: Vec<_> = validator.iter_errors(&vm).map(|e| e.to_string()).collect();
        assert_eq!(errors, [""; 0], "{vm:#}");
    }
    let devices = &vm["spec"]["template"]["spec"]["domain"]["devices"];
    json!([
        devices["autoattachGraphicsDevice"],
        devices["video"],
        devices["logSerialConsole"],
    ])
}

#[test]
fn screen_and_console_are_rendered_as_kubevirt_has_them() {
    for model in VideoModel::ALL {
        assert_eq!(
            devices(DisplayType::Vnc, Some(*model), Some(true)),
            json!([null, {"type": model.as_str()}, true])
        );
    }
    assert_eq!(
        devices(DisplayType::None, None, Some(false)),
        json!([false, null, false])
    );
    assert_eq!(
        devices(DisplayType::Vnc, None, None),
        json!([null, null, null])
    );
}
