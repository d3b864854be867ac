//! What a quota prevents, and what it does not.

use common::api::choice::PowerState;
use common::names;
use common::quantity::Bytes;

use super::{Environment, edit, quota_used_up, settle};
use crate::fixtures::annotate;

/// A Machine whose growth is held is stopped, started and restarted as its user wants, and gets no more vCPUs, memory or
/// storage. It gets them as soon as the growth is permitted.
///
/// # Panics
/// If the law does not hold.
pub fn a_machine_whose_growth_is_held_is_switched_and_does_not_grow<E: Environment>(
    mut environment: E,
) {
    settle(&mut environment);
    let (first, resources) = (environment.guest(), environment.resources());
    assert!(first.is_some(), "the guest of this law runs");
    environment.set_hold(Some(quota_used_up()));
    edit(&mut environment, |block| {
        block.cpu.cores += 2;
        for size in [
            &mut block.memory.size,
            &mut block.memory.max_size,
            &mut block.disks[0].size,
        ] {
            *size = Bytes::new(2 * size.get());
        }
        let mut more = block.disks[0].clone();
        more.name = "more".into();
        more.boot_order = None;
        block.disks.push(more);
    });
    settle(&mut environment);
    assert_eq!(environment.resources(), resources);
    assert_eq!(environment.guest(), first, "the guest keeps running");

    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    settle(&mut environment);
    assert_eq!(environment.guest(), None, "it is stopped");

    edit(&mut environment, |block| {
        block.power_state = PowerState::Running;
    });
    settle(&mut environment);
    let second = environment.guest();
    assert!(second.is_some(), "it is started");
    assert_eq!(environment.resources(), resources);

    let key = names::ANNOTATION_RESTART_REQUESTED;
    annotate(environment.machine_mut(), key, "now");
    settle(&mut environment);
    let third = environment.guest();
    assert!(third.is_some() && third != second, "it is restarted");
    assert_eq!(environment.resources(), resources);

    environment.set_hold(None);
    settle(&mut environment);
    assert_ne!(environment.resources(), resources);
}
