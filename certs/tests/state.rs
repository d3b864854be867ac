//! CA and leaf over time: made, stored, read back, refused, renewed.
#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use certs::{
    AUTHORITY_LIFE, Authority, AuthorityError, BACKDATE, LEAF_LIFE, Leaf, Names, NamesError, Step,
    Stored, bundle_contains, plan,
};
use proptest::prelude::*;
use time::{Duration, OffsetDateTime};

fn start() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
}

fn authority() -> Authority {
    Authority::generate("webhook CA", start()).unwrap()
}

fn names() -> Names {
    Names::new(["machine-webhook.ns.svc".to_owned(), "127.0.0.1".to_owned()]).unwrap()
}

#[test]
fn a_stored_authority_comes_back_the_same() {
    let made = authority();
    let kept = serde_json::to_string(made.stored()).unwrap();
    let read = Authority::parse(&serde_json::from_str(&kept).unwrap()).unwrap();
    assert_eq!(read.validity(), made.validity());
    assert_eq!(read.certificate_pem(), made.certificate_pem());
    let leaf = read.sign(&names(), start()).unwrap();
    assert!(made.signed(&leaf));
}

#[test]
fn two_generations_differ_and_do_not_sign_for_each_other() {
    let (one, two) = (authority(), authority());
    assert_ne!(one.certificate_pem(), two.certificate_pem());
    let leaf = one.sign(&names(), start()).unwrap();
    assert!(one.signed(&leaf) && !two.signed(&leaf));
}

#[test]
fn the_lives_are_as_told() {
    let ca = authority();
    assert_eq!(ca.validity().not_before, start() - BACKDATE);
    assert_eq!(ca.validity().not_after, start() + AUTHORITY_LIFE);
    let leaf = ca.sign(&names(), start()).unwrap();
    assert_eq!(leaf.validity().not_after, start() + LEAF_LIFE);
    let late = ca.validity().not_after - Duration::hours(5);
    let short = ca.sign(&names(), late).unwrap();
    assert_eq!(short.validity().not_after, ca.validity().not_after);
}

#[test]
fn key_and_certificate_must_be_a_pair_and_the_certificate_a_ca() {
    let (one, two) = (authority(), authority());
    let crossed = Stored {
        key: two.stored().key.clone(),
        ..one.stored().clone()
    };
    assert!(matches!(
        Authority::parse(&crossed),
        Err(AuthorityError::Mismatch)
    ));

    let key = rcgen::KeyPair::generate().unwrap();
    let plain = rcgen::CertificateParams::new(["x".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let stored = Stored {
        certificate: plain.pem(),
        key: key.serialize_pem(),
    };
    assert!(matches!(
        Authority::parse(&stored),
        Err(AuthorityError::NotAnAuthority)
    ));

    let empty = Stored {
        certificate: String::new(),
        key: String::new(),
    };
    assert!(matches!(
        Authority::parse(&empty),
        Err(AuthorityError::Certificate(_))
    ));
    let keyless = Stored {
        key: String::new(),
        ..one.stored().clone()
    };
    assert!(matches!(
        Authority::parse(&keyless),
        Err(AuthorityError::Key(_))
    ));
}

#[test]
fn neither_debug_form_tells_the_key() {
    let ca = authority();
    let secret = ca.stored().key.lines().nth(1).unwrap().to_owned();
    let leaf = ca.sign(&names(), start()).unwrap();
    let told = format!("{ca:?} {:?} {leaf:?}", ca.stored());
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
fn a_bundle_is_searched_by_content() {
    let (one, two) = (authority(), authority());
    let both = format!(
        "# ours\r\n{}\n\n{}",
        two.certificate_pem(),
        one.certificate_pem()
    );
    assert!(bundle_contains(both.as_bytes(), one.certificate_pem()));
    assert!(!bundle_contains(
        two.certificate_pem().as_bytes(),
        one.certificate_pem()
    ));
    assert!(!bundle_contains(b"", one.certificate_pem()));
    let broken = format!(
        "{}-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
        one.certificate_pem()
    );
    assert!(!bundle_contains(broken.as_bytes(), one.certificate_pem()));
}

#[test]
fn the_plan_makes_signs_and_rests() {
    let now = start();
    assert_eq!(plan(None, None, now), Step::MakeAuthority);
    let ca = authority();
    assert_eq!(plan(Some(&ca), None, now), Step::SignLeaf);
    let leaf = ca.sign(&names(), now).unwrap();
    let due = leaf.validity().renewal_due();
    assert_eq!(
        plan(Some(&ca), Some(&leaf), now),
        Step::Nothing { until: due }
    );
    assert_eq!(plan(Some(&ca), Some(&leaf), due), Step::SignLeaf);
    let other = authority();
    assert_eq!(
        plan(Some(&other), Some(&leaf), now),
        Step::SignLeaf,
        "the CA was replaced"
    );
    let past = ca.validity().not_before - Duration::SECOND;
    assert_eq!(
        plan(Some(&ca), Some(&leaf), past),
        Step::MakeAuthority,
        "the clock went back"
    );
}

/// Hourly passes for three years: at no moment is the server without a leaf that holds, and the
/// number of signatures stays near one per two thirds of a leaf's life.
#[test]
fn three_years_pass_without_a_gap() {
    let (mut now, end) = (start(), start() + Duration::days(3 * 365));
    let (mut ca, mut leaf): (Option<Authority>, Option<Leaf>) = (None, None);
    let (mut authorities, mut leaves) = (0, 0);
    while now < end {
        loop {
            match plan(ca.as_ref(), leaf.as_ref(), now) {
                Step::MakeAuthority => {
                    ca = Some(Authority::generate("CA", now).unwrap());
                    authorities += 1;
                }
                Step::SignLeaf => {
                    leaf = Some(ca.as_ref().unwrap().sign(&names(), now).unwrap());
                    leaves += 1;
                }
                Step::Nothing { until } => {
                    assert!(until >= now);
                    break;
                }
            }
        }
        let (ca, leaf) = (ca.as_ref().unwrap(), leaf.as_ref().unwrap());
        assert!(leaf.validity().contains(now) && ca.signed(leaf));
        assert!(leaf.validity().not_after <= ca.validity().not_after);
        now += Duration::HOUR;
    }
    assert_eq!(authorities, 3, "one a year");
    assert!((230..=250).contains(&leaves), "{leaves}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// One damaged byte, or a cut: refused or harmless, never a panic; what is accepted can sign.
    #[test]
    fn damaged_pem_never_panics(position in 0usize..2_000, byte in 0u8..=255, cut in any::<bool>(), in_key in any::<bool>()) {
        let mut stored = fixture();
        let text = if in_key { &mut stored.key } else { &mut stored.certificate };
        let mut bytes = text.clone().into_bytes();
        let position = position % bytes.len();
        if cut { bytes.truncate(position) } else { bytes[position] = byte }
        *text = String::from_utf8_lossy(&bytes).into_owned();
        let _ = bundle_contains(stored.certificate.as_bytes(), &fixture().certificate);
        if let Ok(ca) = Authority::parse(&stored) {
            prop_assert!(ca.sign(&names(), start()).is_ok());
        }
    }

    #[test]
    fn arbitrary_text_never_panics(certificate in ".{0,200}", key in ".{0,200}") {
        let stored = Stored { certificate, key };
        prop_assert!(Authority::parse(&stored).is_err());
    }
}

fn fixture() -> Stored {
    static FIXTURE: std::sync::OnceLock<Stored> = std::sync::OnceLock::new();
    FIXTURE.get_or_init(|| authority().stored().clone()).clone()
}
