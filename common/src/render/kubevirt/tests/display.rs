//! Screen and serial console.

use serde_json::{Value, json};

use super::fixtures;
use super::schema;
use crate::api::choice::{Choice as _, DisplayType, VideoModel};
use crate::api::normalized::{NormalizedConsole, NormalizedDisplay};

fn devices(kind: DisplayType, video: Option<VideoModel>, log: Option<bool>) -> Value {
    let mut block = fixtures::block();
    block.display = Some(NormalizedDisplay {
        password_secret_ref: None,
        kind,
        video,
    });
    block.console = log.map(|log| NormalizedConsole { log });
    let vm = schema::accepted(&block);
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
