use super::*;

/// An image that is fetched without credentials.
fn key(image: &str) -> FetchKey {
    FetchKey {
        image: image.into(),
        secret: None,
    }
}

fn request<'a>(image: &str, namespace: &'a str) -> Request<'a> {
    Request {
        key: key(image),
        secret_version: None,
        namespace,
        machine: "web",
        made: ImageUse::Disk(10),
    }
}

fn state(fetches: &Fetches, image: &str) -> Option<ImageState> {
    fetches.state(&key(image), "default", "web")
}

#[test]
fn a_fetch_that_failed_is_tried_again_after_a_while_and_is_reported_meanwhile() {
    let fetches = Fetches::default();
    let mut now = Instant::now();
    let begin = |now| fetches.begin(&request("image", "default"), now).is_some();
    assert!(begin(now));
    assert!(!begin(now), "one at a time");
    let failed = ImageState::Failed("no route".into());
    for expected in [PAUSE_MIN, PAUSE_MIN * 2, PAUSE_MIN * 4] {
        fetches.end(&key("image"), Err("no route".into()), now);
        assert_eq!(state(&fetches, "image"), Some(failed.clone()));
        now += expected / 2;
        assert!(!begin(now), "it waits");
        now += expected / 2;
        assert!(begin(now));
        assert_eq!(state(&fetches, "image"), Some(failed.clone()), "still why");
    }
    fetches.end(&key("image"), Ok(()), now);
    assert_eq!(state(&fetches, "image"), None);
}

#[test]
fn an_image_that_was_too_large_for_a_disk_is_fetched_at_once_for_a_larger_one() {
    let fetches = Fetches::default();
    let now = Instant::now();
    let made = |made| Request {
        made,
        ..request("image", "default")
    };
    assert!(fetches.begin(&made(ImageUse::Disk(10)), now).is_some());
    fetches.end(&key("image"), Err("too large".into()), now);
    assert!(fetches.begin(&made(ImageUse::Disk(10)), now).is_none());
    assert!(fetches.begin(&made(ImageUse::Disk(5)), now).is_none());
    assert!(fetches.begin(&made(ImageUse::Disk(20)), now).is_some());
    fetches.end(&key("image"), Err("too large".into()), now);
    assert!(fetches.begin(&made(ImageUse::Medium(5)), now).is_some());
    fetches.end(&key("image"), Err("too large".into()), now);
    assert!(fetches.begin(&made(ImageUse::Medium(5)), now).is_none());
    assert!(fetches.begin(&made(ImageUse::Medium(6)), now).is_some());
    fetches.end(&key("image"), Err("no route".into()), now);
    assert!(fetches.begin(&made(ImageUse::Disk(20)), now).is_none());
}

#[test]
fn a_namespace_has_one_fetch_at_a_time_and_others_are_served_before_its_next() {
    let fetches = Fetches::default();
    let now = Instant::now();
    let begin =
        |image: &str, namespace: &str| fetches.begin(&request(image, namespace), now).is_some();
    assert!(begin("a1", "a"));
    assert!(!begin("a2", "a"), "one at a time");
    assert_eq!(
        fetches.state(&key("a2"), "a", "web"),
        Some(ImageState::Waiting)
    );
    for (image, namespace) in [("b1", "b"), ("c1", "c"), ("d1", "d")] {
        assert!(begin(image, namespace), "{namespace} does not wait for a");
    }
    assert!(!begin("e1", "e"), "four at a time");
    fetches.end(&key("b1"), Ok(()), now);
    assert!(!begin("f1", "f"), "e was first");
    assert!(begin("e1", "e"));
    fetches.end(&key("a1"), Ok(()), now);
    assert!(!begin("f1", "f"), "a was first");
    assert!(begin("a2", "a"));
    fetches.end(&key("a2"), Ok(()), now);
    assert!(!begin("a3", "a"), "f was first");
    assert!(begin("f1", "f"));
}

#[test]
fn a_namespace_that_no_longer_asks_leaves_the_queue() {
    let fetches = Fetches::default();
    let now = Instant::now();
    for namespace in ["a", "b", "c", "d"] {
        assert!(fetches.begin(&request(namespace, namespace), now).is_some());
    }
    assert!(fetches.begin(&request("e", "e"), now).is_none());
    fetches.end(&key("a"), Ok(()), now);
    assert!(fetches.begin(&request("f", "f"), now).is_none());
    assert!(
        fetches
            .begin(&request("f", "f"), now + QUEUE_LIMIT)
            .is_some()
    );
}

#[test]
fn a_fetch_knows_every_machine_that_waits_for_it() {
    let fetches = Fetches::default();
    let now = Instant::now();
    assert!(fetches.begin(&request("image", "default"), now).is_some());
    fetches.state(&key("image"), "other", "db");
    let expected = [("default", "web"), ("other", "db")];
    let expected = expected.map(|(namespace, name)| (namespace.into(), name.into()));
    assert_eq!(fetches.needed_by(&key("image")), expected.into());
    assert_eq!(fetches.needed_by(&key("another")), BTreeSet::new());
}

#[test]
fn a_fetch_counts_what_the_others_have_announced_and_not_written() {
    let fetches = Fetches::default();
    let now = Instant::now();
    let begin = |image, namespace| fetches.begin(&request(image, namespace), now).unwrap();
    let (first, second, third) = (begin("a", "a"), begin("b", "b"), begin("c", "c"));
    assert_eq!(first.announce(100), 0);
    assert_eq!(second.announce(50), 100);
    first.progress.done.store(30, Ordering::Relaxed);
    assert_eq!(third.announce(1), 70 + 50);
    fetches.end(&key("a"), Err("no route".into()), now);
    assert_eq!(third.announce(1), 50);
    assert_eq!(second.announce(50), 1, "not itself");
}

#[test]
fn only_the_latest_failures_are_remembered() {
    let fetches = Fetches::default();
    let now = Instant::now();
    let name = |number: usize| format!("image-{number}");
    for number in 0..FAILURES_MAX + 10 {
        let at = now + Duration::from_secs(number as u64);
        let name = name(number);
        assert!(fetches.begin(&request(&name, "default"), at).is_some());
        fetches.end(&key(&name), Err("no route".into()), at);
    }
    assert_eq!(fetches.lock().images.len(), FAILURES_MAX);
    assert_eq!(state(&fetches, &name(9)), None);
    let failed = ImageState::Failed("no route".into());
    assert_eq!(state(&fetches, &name(10)), Some(failed));
}

#[test]
fn wrong_credentials_delay_neither_others_nor_their_correction() {
    let fetches = Fetches::default();
    let now = Instant::now();
    let with = |secret: &str, version: &'static str| Request {
        key: FetchKey {
            image: "image".into(),
            secret: Some(secret.into()),
        },
        secret_version: Some(version),
        ..request("image", "default")
    };
    let begin = |request: &Request<'_>| fetches.begin(request, now).is_some();
    let wrong = with("wrong", "1");
    assert!(begin(&wrong));
    fetches.end(&wrong.key, Err("401".into()), now);
    assert!(!begin(&wrong), "it waits");

    let right = with("right", "2");
    assert_eq!(fetches.state(&right.key, "default", "db"), None);
    assert!(begin(&right));
    fetches.end(&right.key, Ok(()), now);
    let failed = ImageState::Failed("401".into());
    assert_eq!(fetches.state(&wrong.key, "default", "web"), Some(failed));

    assert!(begin(&with("wrong", "3")), "the Secret was corrected");
}

#[test]
fn nothing_is_begun_while_something_waits_for_the_end_of_what_is_under_way() {
    let fetches = Fetches::default();
    let now = Instant::now();
    assert!(fetches.begin(&request("a", "one"), now).is_some());
    fetches.hold(now);
    assert!(fetches.begin(&request("b", "two"), now).is_none());
    let waiting = fetches.state(&key("b"), "two", "web");
    assert_eq!(waiting, Some(ImageState::Waiting));
    fetches.end(&key("a"), Ok(()), now);
    let later = now + HOLD / 2;
    assert!(fetches.begin(&request("b", "two"), later).is_none());
    assert!(fetches.begin(&request("b", "two"), now + HOLD).is_some());
}

/// One namespace has a copy of hours and a deletion, which asks every minute.
#[test]
fn what_waits_for_a_copy_of_hours_does_not_stop_the_images_of_others() {
    let fetches = Fetches::default();
    let start = Instant::now();
    assert!(fetches.begin(&request("long", "one"), start).is_some());
    let mut begun = vec![];
    for minute in 0..60 {
        let now = start + Duration::from_mins(minute);
        fetches.hold(now);
        let (image, namespace) = (format!("image-{minute}"), format!("of-{minute}"));
        if fetches.begin(&request(&image, &namespace), now).is_some() {
            fetches.end(&key(&image), Ok(()), now);
            begun.push(minute);
        }
    }
    // Holds of 3, 6, 12 and 24 minutes, and pauses as long as each.
    let expected: Vec<_> = (3..6).chain(12..18).chain(30..42).collect();
    assert_eq!(begun, expected);
}

/// The copies of four namespaces take half an hour each and begin one after the other; a deletion asks every minute.
#[test]
fn copies_that_overlap_for_ever_leave_a_moment_for_a_deletion_and_begin_again_after_it() {
    let fetches = Fetches::default();
    let start = Instant::now();
    let mut ends: [Option<u64>; FETCHES_MAX] = [None; FETCHES_MAX];
    let mut free = None;
    for minute in 0..300 {
        let now = start + Duration::from_mins(minute);
        for (slot, end) in ends.iter_mut().enumerate() {
            let image = format!("image-{slot}");
            if *end == Some(minute) {
                fetches.end(&key(&image), Ok(()), now);
                *end = None;
            }
        }
        if minute >= 30 && free.is_none() {
            if ends.iter().all(Option::is_none) {
                free = Some(minute);
            } else {
                fetches.hold(now);
            }
        }
        for (slot, end) in (0..).zip(&mut ends) {
            let (image, namespace) = (format!("image-{slot}"), format!("of-{slot}"));
            let is_its_time = end.is_none() && minute >= 7 * slot;
            if is_its_time && fetches.begin(&request(&image, &namespace), now).is_some() {
                *end = Some(minute + 30);
            }
        }
        if let Some(free) = free.filter(|free| minute == free + 3) {
            assert!(
                ends.iter().any(Option::is_some),
                "nothing began after minute {free}"
            );
        }
    }
    assert!(free.is_some());
}
