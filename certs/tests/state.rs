//! CA and leaf over time: generated, stored, read back, rejected, renewed; and the plan for a lost state.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed test panics")]

use std::sync::OnceLock;

use certs::{
    Action, BACKDATE, CA_LIFETIME, Ca, CaCertificate, CaError, Change, LEAF_LIFETIME, Lifetimes,
    LifetimesError, Phase, PlanInput, RECOVERY_DELAY, SecretData, ServerNames, ServerNamesError,
    State, StoredState, TrustTracker, bundle_pem, plan,
};
use proptest::prelude::*;
use time::{Duration, OffsetDateTime};

fn start() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
}

fn new_ca() -> Ca {
    Ca::generate("webhook CA", start(), CA_LIFETIME).unwrap()
}

fn names() -> ServerNames {
    ServerNames::new(["machine-webhook.ns.svc".to_owned(), "127.0.0.1".to_owned()]).unwrap()
}

/// The data of a Secret that holds the state.
fn stored(state: &State) -> SecretData {
    let data = state.secret_data().into_iter();
    let present = data.filter_map(|(key, text)| Some((key.to_owned(), text?.into_bytes())));
    present.collect()
}

fn intact(stored: StoredState) -> State {
    match stored {
        StoredState::Intact(state) => state,
        StoredState::Lost { reason, .. } => panic!("{reason}"),
    }
}

fn lost(stored: StoredState) -> (String, Option<State>) {
    match stored {
        StoredState::Lost { reason, remainder } => (reason, remainder),
        StoredState::Intact(_) => panic!("the state is intact"),
    }
}

fn assert_same(one: &State, two: &State) {
    assert_eq!(one.bundle(), two.bundle());
    assert_eq!(one.phase(), two.phase());
    assert_eq!(one.overlap_since, two.overlap_since);
    assert_eq!(one.current.key_pem(), two.current.key_pem());
}

/// A state with a next CA and old ones.
fn full() -> State {
    State {
        next: Some(new_ca()),
        old: vec![certificate(&new_ca()), certificate(&new_ca())],
        overlap_since: Some(start()),
        ..State::new(new_ca())
    }
}

fn certificate(ca: &Ca) -> CaCertificate {
    CaCertificate::parse(ca.certificate_pem()).unwrap()
}

#[test]
fn a_stored_state_is_read_back_unchanged() {
    for state in [State::new(new_ca()), full()] {
        let read = intact(StoredState::parse(Some(&stored(&state))));
        assert_same(&read, &state);
        let leaf = read.current.sign(&names(), start(), LEAF_LIFETIME).unwrap();
        assert_eq!(leaf.info().issuer, certificate(&state.current));
    }
    assert_eq!(State::new(new_ca()).phase(), Phase::Steady);
    assert_eq!(full().phase(), Phase::Publishing);
}

/// Releases without rotation stored certificate and key, and nothing else.
#[test]
fn a_secret_of_a_release_without_rotation_is_read() {
    let ca = new_ca();
    let data = SecretData::from([
        ("ca.crt".to_owned(), ca.certificate_pem().into()),
        ("ca.key".to_owned(), ca.key_pem().into()),
    ]);
    assert_same(&intact(StoredState::parse(Some(&data))), &State::new(ca));
}

#[test]
fn a_damaged_state_reports_the_damage_and_keeps_the_readable_part() {
    let state = full();
    let without = |key: &str| {
        let mut data = stored(&state);
        data.remove(key);
        lost(StoredState::parse(Some(&data)))
    };
    let with = |key: &str, text: &str| {
        let mut data = stored(&state);
        data.insert(key.to_owned(), text.into());
        lost(StoredState::parse(Some(&data)))
    };
    let next = state.next.as_ref().map(certificate);

    // The next CA takes the place of the current one: clients trust it already, or will soon.
    for (reason, remainder) in [
        without("ca.key"),
        with("ca.key", "no key"),
        with("ca.crt", ""),
    ] {
        assert!(reason.starts_with("ca."), "{reason}");
        let remainder = remainder.unwrap();
        assert_eq!(Some(certificate(&remainder.current)), next);
        assert!(remainder.next.is_none() && remainder.old == state.old);
    }
    let (reason, remainder) = without("ca-next.key");
    assert_eq!(reason, "ca-next.key is missing");
    assert!(remainder.unwrap().next.is_none());
    let (reason, remainder) = with("ca-old.crt", "-----BEGIN CERTIFICATE-----\nx");
    assert!(
        reason.starts_with("ca-old.crt: the CA certificate cannot be read"),
        "{reason}"
    );
    assert!(remainder.unwrap().old.is_empty());
    assert_eq!(with("since", "once").0, "since is not an RFC 3339 time");

    assert!(lost(StoredState::parse(None)).1.is_none());
    let (reason, remainder) = lost(StoredState::parse(Some(&SecretData::new())));
    assert_eq!(
        (reason.as_str(), remainder.is_none()),
        ("ca.crt is missing", true)
    );
}

#[test]
fn two_cas_of_one_name_have_different_certificates() {
    let (one, two) = (new_ca(), new_ca());
    assert_ne!(one.certificate_pem(), two.certificate_pem());
    let leaf = one.sign(&names(), start(), LEAF_LIFETIME).unwrap();
    assert_eq!(leaf.info().issuer, certificate(&one));
    assert_ne!(leaf.info().issuer, certificate(&two));
}

#[test]
fn certificates_have_the_requested_lifetime_and_never_outlive_their_ca() {
    let ca = new_ca();
    assert_eq!(ca.validity().not_before, start() - BACKDATE);
    assert_eq!(ca.validity().not_after, start() + CA_LIFETIME);
    let leaf = ca.sign(&names(), start(), LEAF_LIFETIME).unwrap();
    assert_eq!(leaf.validity().not_after, start() + LEAF_LIFETIME);
    let (early, late) = (LEAF_LIFETIME * 19 / 30, LEAF_LIFETIME * 2 / 3);
    let renew_at = leaf.info().renew_at;
    assert!(
        start() + early <= renew_at && renew_at <= start() + late,
        "{renew_at}"
    );
    let late = ca.validity().not_after - Duration::hours(5);
    let short = ca.sign(&names(), late, LEAF_LIFETIME).unwrap();
    assert_eq!(short.validity().not_after, ca.validity().not_after);
}

#[test]
fn lifetimes_that_leave_no_room_for_a_rotation_are_rejected() {
    let lifetimes = |ca, leaf, propagation| {
        let hours = Duration::hours;
        Lifetimes::new(hours(ca), hours(leaf), hours(propagation))
    };
    let least = Duration::hours(27);
    assert!(lifetimes(27, 7, 1).is_ok());
    assert_eq!(lifetimes(26, 7, 1), Err(LifetimesError::Ca { least }));
    assert_eq!(lifetimes(27, 0, 1), Err(LifetimesError::Leaf));
    assert_eq!(lifetimes(27, 7, 0), Err(LifetimesError::Propagation));
    assert!(Lifetimes::default().overlap() >= LEAF_LIFETIME);
}

#[test]
fn a_key_of_another_certificate_and_a_certificate_without_ca_bit_are_rejected() {
    let (one, two) = (new_ca(), new_ca());
    let rejected = |certificate: &str, key: &str| Ca::parse(certificate, key).unwrap_err();
    assert!(matches!(
        rejected(one.certificate_pem(), &two.key_pem()),
        CaError::Mismatch
    ));
    let key = rcgen::KeyPair::generate().unwrap();
    let plain = rcgen::CertificateParams::new(["x".to_owned()]).unwrap();
    let plain = plain.self_signed(&key).unwrap();
    assert!(matches!(
        rejected(&plain.pem(), &key.serialize_pem()),
        CaError::NotCa
    ));
    assert!(matches!(rejected("", ""), CaError::Certificate(_)));
    assert!(matches!(
        rejected(one.certificate_pem(), ""),
        CaError::Key(_)
    ));
}

#[test]
fn debug_output_never_contains_a_key() {
    let state = full();
    let secret = state.current.key_pem().lines().nth(1).unwrap().to_owned();
    let leaf = state
        .current
        .sign(&names(), start(), LEAF_LIFETIME)
        .unwrap();
    let output = format!("{state:?} {leaf:?} {:?}", state.current);
    assert!(!output.contains(&secret) && !output.contains("PRIVATE"));
}

#[test]
fn server_names_are_dns_names_or_ip_addresses() {
    for bad in ["", "a b", "*", "exämple", "a..b", "-"] {
        let result = ServerNames::new([bad.to_owned()]);
        assert_eq!(result, Err(ServerNamesError::Name(bad.to_owned())), "{bad}");
    }
    assert_eq!(ServerNames::new([]), Err(ServerNamesError::Empty));
    assert!(ServerNames::new(["::1".to_owned(), "a.b.svc".to_owned()]).is_ok());
}

#[test]
fn a_bundle_is_compared_by_certificates_not_by_formatting() {
    let (one, two) = (new_ca(), new_ca());
    let both = [certificate(&two), certificate(&one)];
    let text = format!(
        "# ours\r\n{}\n\n{}",
        two.certificate_pem(),
        one.certificate_pem()
    );
    let read = |text: &str| CaCertificate::parse_bundle(text.as_bytes());
    assert_eq!(read(&text).unwrap(), both);
    assert_eq!(read(&bundle_pem(&both)).unwrap(), both);
    assert_eq!(read("").unwrap(), []);
    let broken = format!("{text}-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n");
    assert!(read(&broken).is_err());
}

/// The actions of one replica at one moment.
fn actions(
    stored: &StoredState,
    known: Option<&State>,
    bundles: &[Vec<CaCertificate>],
    observed: &[Vec<CaCertificate>],
    lost_for: Duration,
) -> Vec<Action> {
    let mut trust = TrustTracker::default();
    trust.observe(observed, Duration::ZERO);
    let input = PlanInput {
        stored,
        known,
        last_trusted: known,
        lost_for,
        bundles,
        trust: &trust,
        uptime: Duration::hours(1),
        leaf: None,
        now: start(),
    };
    plan(&input, &Lifetimes::default())
}

/// The only action, which has to write the state.
fn change(actions: Vec<Action>) -> (Change, State) {
    let Ok([Action::Store(change, draft)]) = <[_; 1]>::try_from(actions) else {
        panic!("not a write");
    };
    (change, draft.complete(|| Ok::<_, ()>(new_ca())).unwrap())
}

#[test]
fn a_lost_state_is_recovered_from_a_copy_then_from_its_remainder_then_by_a_new_ca() {
    let (state, gone) = (State::new(new_ca()), StoredState::parse(None));
    let trusted = [state.bundle(), state.bundle()];
    let nothing = [Vec::new(), Vec::new()];

    let (what, made) = change(actions(&gone, None, &nothing, &nothing, Duration::ZERO));
    assert_eq!((what, made.phase()), (Change::Create, Phase::Steady));
    let (what, made) = change(actions(
        &gone,
        Some(&state),
        &trusted,
        &trusted,
        Duration::ZERO,
    ));
    assert_eq!(what, Change::Restore);
    assert_same(&made, &state);
    // Another replica may have a copy.
    assert!(
        actions(
            &gone,
            None,
            &trusted,
            &trusted,
            RECOVERY_DELAY - Duration::SECOND
        )
        .is_empty()
    );
    let (what, made) = change(actions(&gone, None, &trusted, &trusted, RECOVERY_DELAY));
    assert_eq!((what, &made.old), (Change::Replace, &state.bundle()));

    let mut half = stored(&full());
    half.remove("ca-next.key");
    let half = StoredState::parse(Some(&half));
    let (what, made) = change(actions(&half, None, &trusted, &trusted, RECOVERY_DELAY));
    assert_eq!(what, Change::Salvage);
    assert!(made.old.contains(&state.bundle()[0]) && made.overlap_since.is_none());
}

#[test]
fn a_foreign_ca_in_the_secret_becomes_next_with_the_old_key_or_current_without_it() {
    let (state, other) = (State::new(new_ca()), State::new(new_ca()));
    let (trusted, stored) = ([state.bundle()], StoredState::Intact(other.clone()));
    let (what, made) = change(actions(
        &stored,
        Some(&state),
        &trusted,
        &trusted,
        Duration::ZERO,
    ));
    assert_eq!(what, Change::Reclaim);
    assert_eq!(made.bundle(), [state.bundle(), other.bundle()].concat());
    assert_eq!(made.current.key_pem(), state.current.key_pem());

    let (what, made) = change(actions(&stored, None, &trusted, &trusted, Duration::ZERO));
    assert_eq!(what, Change::Adopt);
    assert_eq!(made.bundle(), [other.bundle(), state.bundle()].concat());
    assert_eq!(made.phase(), Phase::Overlap);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// One changed byte, or a truncated value: an error or harmless, never a panic. A CA that is read
    /// can sign.
    #[test]
    fn damaged_secret_data_never_panics(entry in 0usize..7, position in 0usize..2_000, byte in 0u8..=255, cut in any::<bool>()) {
        let mut data = fixture().clone();
        let key = data.keys().nth(entry).unwrap().clone();
        let bytes = data.get_mut(&key).unwrap();
        let position = position % bytes.len();
        if cut { bytes.truncate(position) } else { bytes[position] = byte }
        let _ = CaCertificate::parse_bundle(bytes);
        let state = match StoredState::parse(Some(&data)) {
            StoredState::Intact(state) => Some(state),
            StoredState::Lost { remainder, .. } => remainder,
        };
        if let Some(state) = state {
            prop_assert!(state.current.sign(&names(), start(), LEAF_LIFETIME).is_ok());
        }
    }

    #[test]
    fn arbitrary_text_never_panics(certificate in ".{0,200}", key in ".{0,200}") {
        prop_assert!(Ca::parse(&certificate, &key).is_err());
    }
}

fn fixture() -> &'static SecretData {
    static FIXTURE: OnceLock<SecretData> = OnceLock::new();
    FIXTURE.get_or_init(|| stored(&full()))
}
