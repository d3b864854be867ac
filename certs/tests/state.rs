//! CA and leaf over time: made, stored, read back, refused, renewed.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed test panics")]

use std::sync::OnceLock;

use certs::{
    AUTHORITY_LIFE, Authority, AuthorityError, BACKDATE, CaCertificate, Change, Entries, LEAF_LIFE,
    Lives, LivesError, Names, NamesError, Phase, RECOVERY, Reading, Situation, State, Step, Trust,
    bundle_pem, plan,
};
use proptest::prelude::*;
use time::{Duration, OffsetDateTime};

fn start() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
}

fn authority() -> Authority {
    Authority::generate("webhook CA", start(), AUTHORITY_LIFE).unwrap()
}

fn names() -> Names {
    Names::new(["machine-webhook.ns.svc".to_owned(), "127.0.0.1".to_owned()]).unwrap()
}

/// What a Secret would hold.
fn stored(state: &State) -> Entries {
    let entries = state.entries().into_iter();
    let kept = entries.filter_map(|(key, text)| Some((key.to_owned(), text?.into_bytes())));
    kept.collect()
}

fn whole(reading: Reading) -> State {
    match reading {
        Reading::Whole(state) => state,
        Reading::Lost { reason, .. } => panic!("{reason}"),
    }
}

fn lost(reading: Reading) -> (String, Option<State>) {
    match reading {
        Reading::Lost { reason, rest } => (reason, rest),
        Reading::Whole(_) => panic!("nothing is lost"),
    }
}

fn same(one: &State, two: &State) {
    assert_eq!(one.bundle(), two.bundle());
    assert_eq!((one.phase(), one.since), (two.phase(), two.since));
    assert_eq!(one.current.key_pem(), two.current.key_pem());
}

/// A state with everything in it.
fn full() -> State {
    State {
        next: Some(authority()),
        old: vec![certificate(&authority()), certificate(&authority())],
        since: Some(start()),
        ..State::of(authority())
    }
}

fn certificate(ca: &Authority) -> CaCertificate {
    CaCertificate::parse(ca.certificate_pem()).unwrap()
}

#[test]
fn a_stored_state_comes_back_the_same() {
    for state in [State::of(authority()), full()] {
        let read = whole(Reading::parse(Some(&stored(&state))));
        same(&read, &state);
        let leaf = read.current.sign(&names(), start(), LEAF_LIFE).unwrap();
        assert_eq!(leaf.tenure().issuer, certificate(&state.current));
    }
    assert_eq!(State::of(authority()).phase(), Phase::Steady);
    assert_eq!(full().phase(), Phase::Publishing);
}

/// Versions without rotation stored certificate and key, and nothing else.
#[test]
fn an_older_secret_is_understood() {
    let ca = authority();
    let entries = Entries::from([
        ("ca.crt".to_owned(), ca.certificate_pem().into()),
        ("ca.key".to_owned(), ca.key_pem().into()),
    ]);
    same(&whole(Reading::parse(Some(&entries))), &State::of(ca));
}

#[test]
fn what_is_left_of_a_damaged_state_is_told_and_used() {
    let state = full();
    let without = |key: &str| {
        let mut entries = stored(&state);
        entries.remove(key);
        lost(Reading::parse(Some(&entries)))
    };
    let with = |key: &str, text: &str| {
        let mut entries = stored(&state);
        entries.insert(key.to_owned(), text.into());
        lost(Reading::parse(Some(&entries)))
    };
    let next = state.next.as_ref().map(certificate);

    // The next CA takes the place of the current one; clients know it already, or soon.
    for (told, rest) in [
        without("ca.key"),
        with("ca.key", "no key"),
        with("ca.crt", ""),
    ] {
        assert!(told.starts_with("ca."), "{told}");
        let rest = rest.unwrap();
        assert_eq!(Some(certificate(&rest.current)), next);
        assert!(rest.next.is_none() && rest.old == state.old);
    }
    let (told, rest) = without("ca-next.key");
    assert_eq!(told, "ca-next.key is missing");
    assert!(rest.unwrap().next.is_none());
    let (told, rest) = with("ca-old.crt", "-----BEGIN CERTIFICATE-----\nx");
    assert!(
        told.starts_with("ca-old.crt: the CA certificate cannot be read"),
        "{told}"
    );
    assert!(rest.unwrap().old.is_empty());
    assert_eq!(with("since", "once").0, "since is no time");

    assert!(lost(Reading::parse(None)).1.is_none());
    let (told, rest) = lost(Reading::parse(Some(&Entries::new())));
    assert_eq!((told.as_str(), rest.is_none()), ("ca.crt is missing", true));
}

#[test]
fn two_generations_differ_and_do_not_sign_for_each_other() {
    let (one, two) = (authority(), authority());
    assert_ne!(one.certificate_pem(), two.certificate_pem());
    let leaf = one.sign(&names(), start(), LEAF_LIFE).unwrap();
    assert_eq!(leaf.tenure().issuer, certificate(&one));
    assert_ne!(leaf.tenure().issuer, certificate(&two));
}

#[test]
fn the_lives_are_as_told() {
    let ca = authority();
    assert_eq!(ca.validity().not_before, start() - BACKDATE);
    assert_eq!(ca.validity().not_after, start() + AUTHORITY_LIFE);
    let leaf = ca.sign(&names(), start(), LEAF_LIFE).unwrap();
    assert_eq!(leaf.validity().not_after, start() + LEAF_LIFE);
    let (early, late) = (LEAF_LIFE * 19 / 30, LEAF_LIFE * 2 / 3);
    let due = leaf.tenure().due;
    assert!(start() + early <= due && due <= start() + late, "{due}");
    let late = ca.validity().not_after - Duration::hours(5);
    let short = ca.sign(&names(), late, LEAF_LIFE).unwrap();
    assert_eq!(short.validity().not_after, ca.validity().not_after);
}

#[test]
fn lives_that_do_not_fit_are_refused() {
    let lives = |ca, leaf, spread| {
        let hours = Duration::hours;
        Lives::new(hours(ca), hours(leaf), hours(spread))
    };
    let least = Duration::hours(27);
    assert!(lives(27, 7, 1).is_ok());
    assert_eq!(lives(26, 7, 1), Err(LivesError::Authority { least }));
    assert_eq!(lives(27, 0, 1), Err(LivesError::Leaf));
    assert_eq!(lives(27, 7, 0), Err(LivesError::Propagation));
    assert!(Lives::default().overlap() >= LEAF_LIFE);
}

#[test]
fn key_and_certificate_must_be_a_pair_and_the_certificate_a_ca() {
    let (one, two) = (authority(), authority());
    let refused = |certificate: &str, key: &str| Authority::parse(certificate, key).unwrap_err();
    assert!(matches!(
        refused(one.certificate_pem(), &two.key_pem()),
        AuthorityError::Mismatch
    ));
    let key = rcgen::KeyPair::generate().unwrap();
    let plain = rcgen::CertificateParams::new(["x".to_owned()]).unwrap();
    let plain = plain.self_signed(&key).unwrap();
    assert!(matches!(
        refused(&plain.pem(), &key.serialize_pem()),
        AuthorityError::NotAnAuthority
    ));
    assert!(matches!(refused("", ""), AuthorityError::Certificate(_)));
    assert!(matches!(
        refused(one.certificate_pem(), ""),
        AuthorityError::Key(_)
    ));
}

#[test]
fn no_debug_form_tells_the_key() {
    let state = full();
    let secret = state.current.key_pem().lines().nth(1).unwrap().to_owned();
    let leaf = state.current.sign(&names(), start(), LEAF_LIFE).unwrap();
    let told = format!("{state:?} {leaf:?} {:?}", state.current);
    assert!(!told.contains(&secret) && !told.contains("PRIVATE"));
}

#[test]
fn names_are_dns_names_or_addresses() {
    for bad in ["", "a b", "*", "exämple", "a..b", "-"] {
        let result = Names::new([bad.to_owned()]);
        assert_eq!(result, Err(NamesError::Name(bad.to_owned())), "{bad}");
    }
    assert_eq!(Names::new([]), Err(NamesError::Empty));
    assert!(Names::new(["::1".to_owned(), "a.b.svc".to_owned()]).is_ok());
}

#[test]
fn a_bundle_is_read_by_content() {
    let (one, two) = (authority(), authority());
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

/// What one replica does at one moment.
fn steps(
    stored: &Reading,
    known: Option<&State>,
    bundles: &[Vec<CaCertificate>],
    seen: &[Vec<CaCertificate>],
    lost_for: Duration,
) -> Vec<Step<Authority>> {
    let mut trust = Trust::default();
    trust.observe(seen, Duration::ZERO);
    let situation = Situation {
        stored,
        known,
        proven: known,
        lost_for,
        bundles,
        trust: &trust,
        uptime: Duration::hours(1),
        leaf: None,
        now: start(),
    };
    plan(&situation, &Lives::default())
}

/// The only step, which writes the state.
fn change(steps: Vec<Step<Authority>>) -> (Change, State) {
    let Ok([Step::Store(change, draft)]) = <[_; 1]>::try_from(steps) else {
        panic!("not a write");
    };
    (change, draft.complete(|| Ok::<_, ()>(authority())).unwrap())
}

/// What is lost is recovered, and no CA is given up that clients trust and somebody can sign with.
#[test]
fn a_lost_state_is_recovered_with_what_there_is() {
    let (state, gone) = (State::of(authority()), Reading::parse(None));
    let trusted = [state.bundle(), state.bundle()];
    let nothing = [Vec::new(), Vec::new()];

    let (what, made) = change(steps(&gone, None, &nothing, &nothing, Duration::ZERO));
    assert_eq!((what, made.phase()), (Change::Create, Phase::Steady));
    let (what, made) = change(steps(
        &gone,
        Some(&state),
        &trusted,
        &trusted,
        Duration::ZERO,
    ));
    assert_eq!(what, Change::Restore);
    same(&made, &state);
    // Somebody else may know it.
    assert!(steps(&gone, None, &trusted, &trusted, RECOVERY - Duration::SECOND).is_empty());
    let (what, made) = change(steps(&gone, None, &trusted, &trusted, RECOVERY));
    assert_eq!((what, &made.old), (Change::Replace, &state.bundle()));

    let mut half = stored(&full());
    half.remove("ca-next.key");
    let half = Reading::parse(Some(&half));
    let (what, made) = change(steps(&half, None, &trusted, &trusted, RECOVERY));
    assert_eq!(what, Change::Salvage);
    assert!(made.old.contains(&state.bundle()[0]) && made.since.is_none());
}

/// Another CA in place of the one that clients trust: with its key, both in good order.
#[test]
fn a_ca_of_somebody_else_takes_over_in_good_order() {
    let (state, other) = (State::of(authority()), State::of(authority()));
    let (trusted, stored) = ([state.bundle()], Reading::Whole(other.clone()));
    let (what, made) = change(steps(
        &stored,
        Some(&state),
        &trusted,
        &trusted,
        Duration::ZERO,
    ));
    assert_eq!(what, Change::Reclaim);
    assert_eq!(made.bundle(), [state.bundle(), other.bundle()].concat());
    assert_eq!(made.current.key_pem(), state.current.key_pem());

    let (what, made) = change(steps(&stored, None, &trusted, &trusted, Duration::ZERO));
    assert_eq!(what, Change::Adopt);
    assert_eq!(made.bundle(), [other.bundle(), state.bundle()].concat());
    assert_eq!(made.phase(), Phase::Overlap);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// One damaged byte, or a cut: refused or harmless, never a panic; what is accepted can sign.
    #[test]
    fn damaged_entries_never_panic(entry in 0usize..7, position in 0usize..2_000, byte in 0u8..=255, cut in any::<bool>()) {
        let mut entries = fixture().clone();
        let key = entries.keys().nth(entry).unwrap().clone();
        let bytes = entries.get_mut(&key).unwrap();
        let position = position % bytes.len();
        if cut { bytes.truncate(position) } else { bytes[position] = byte }
        let _ = CaCertificate::parse_bundle(bytes);
        let state = match Reading::parse(Some(&entries)) {
            Reading::Whole(state) => Some(state),
            Reading::Lost { rest, .. } => rest,
        };
        if let Some(state) = state {
            prop_assert!(state.current.sign(&names(), start(), LEAF_LIFE).is_ok());
        }
    }

    #[test]
    fn arbitrary_text_never_panics(certificate in ".{0,200}", key in ".{0,200}") {
        prop_assert!(Authority::parse(&certificate, &key).is_err());
    }
}

fn fixture() -> &'static Entries {
    static FIXTURE: OnceLock<Entries> = OnceLock::new();
    FIXTURE.get_or_init(|| stored(&full()))
}
