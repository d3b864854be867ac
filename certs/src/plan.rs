//! What to do next: a pure function of what was read and the time.
//!
//! Reason: each [`Change`] but one is the reason of a documented event of the CA Secret, and is tested in
//! `tests/state.rs` or reached by `tests/rotation`. [`Change::StartOverlap`] has no event; without it
//! `tests/rotation` finds leaves that API servers reject.

use time::{Duration, OffsetDateTime};

use crate::ca::Ca;
use crate::certificate::CaCertificate;
use crate::leaf::LeafInfo;
use crate::lifetimes::Lifetimes;
use crate::state::State;
use crate::stored_state::StoredState;
use crate::trust::TrustTracker;

/// When the state is lost: how long a replica that has no copy of it waits for one that has.
/// Replicas with a copy write it at once, and try again if the write is refused.
pub const RECOVERY_DELAY: Duration = Duration::seconds(20);

/// Certificates that are adopted from the bundles; a bundle of ours never has more.
const ADOPTED_MAX: usize = 4;

/// Everything that the plan depends on.
#[derive(Debug)]
pub struct PlanInput<'a> {
    /// What the last read of the Secret found.
    pub stored: &'a StoredState,
    /// The last intact state that this replica has read.
    pub known: Option<&'a State>,
    /// The last state whose current CA this replica has seen in every bundle.
    pub last_trusted: Option<&'a State>,
    /// For how long this replica has known that the state is lost; zero if it is not.
    pub lost_for: Duration,
    /// The bundle of each client configuration.
    pub bundles: &'a [Vec<CaCertificate>],
    /// What `bundles` contained until now.
    pub trust: &'a TrustTracker,
    /// Time since the process started, by a clock that is never set.
    pub uptime: Duration,
    /// The leaf that this replica serves.
    pub leaf: Option<&'a LeafInfo>,
    /// The wall clock time of the store.
    pub now: OffsetDateTime,
}

/// One action of a plan. One that fails is planned again.
#[derive(Debug, Clone)]
pub enum Action {
    /// Sign a leaf with this CA and serve it.
    SignLeaf(Ca),
    /// Make this the bundle of every client configuration.
    Publish(Vec<CaCertificate>),
    /// Write the state over the version that was read, and plan again.
    Store(Change, Draft),
}

/// Why the state is written: the reason of an event of the CA Secret, except for [`StartOverlap`](Self::StartOverlap).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// There was no state, and no bundle contains a certificate: a new CA.
    Create,
    /// The state was lost; this replica writes its copy.
    Restore,
    /// The state was damaged; its readable part is kept.
    Salvage,
    /// The state was lost and no replica has the CA's key: a new CA.
    Replace,
    /// Another CA was stored in place of the one that clients trust. This replica has the key
    /// of the trusted one: it stays the current CA, and the other one becomes the next.
    Reclaim,
    /// The same, but the key of the trusted CA is lost: its certificate becomes an old one.
    Adopt,
    /// The current CA is in the last third of its lifetime: the next one is stored.
    StoreNext,
    /// Every client trusts the next CA: it becomes the current one.
    Switch,
    /// The time is recorded after which the old CA no longer signs.
    StartOverlap,
    /// The overlap is over: no leaf of the old CA can be valid.
    Drop,
}

/// A state, except for a CA that is still to be generated.
#[derive(Debug, Clone)]
pub enum Draft {
    /// No CA has to be generated: the state is stored as it is.
    Complete(State),
    /// The current CA is missing; these certificates become old ones.
    WithoutCurrent(Vec<CaCertificate>),
    /// The next CA of this state is missing.
    WithoutNext(State),
}

impl Draft {
    /// Generates the CA that is missing.
    pub fn complete<E>(self, generate: impl FnOnce() -> Result<Ca, E>) -> Result<State, E> {
        Ok(match self {
            Self::Complete(state) => state,
            Self::WithoutCurrent(old) => State::new(generate()?).with_old(old),
            Self::WithoutNext(state) => State {
                next: Some(generate()?),
                ..state
            },
        })
    }
}

/// Returns the actions to take; none if everything is as it should be. An action that fails is
/// planned again as long as it is needed, so a pass may end anywhere.
pub fn plan(input: &PlanInput<'_>, lifetimes: &Lifetimes) -> Vec<Action> {
    let state = match input.stored {
        StoredState::Intact(state) => state,
        StoredState::Lost { remainder, .. } => return recover(input, remainder.as_ref()),
    };
    if !input.trust.was_trusted(state.current.certificate())
        && let Some(action) = input.keep_trusted_ca(state)
    {
        return vec![action];
    }
    let mut actions = Vec::new();
    let signer = input.leaf_signer(state, lifetimes);
    actions.extend(signer.cloned().map(Action::SignLeaf));
    let bundle = state.bundle();
    if input.bundles.iter().any(|published| *published != bundle) {
        actions.push(Action::Publish(bundle));
    }
    actions.extend(input.next_change(state, lifetimes));
    actions
}

/// The state is lost, except for `remainder`.
fn recover(input: &PlanInput<'_>, remainder: Option<&State>) -> Vec<Action> {
    let trusted = input.trusted_certificates();
    // The copy or the remainder may be older than the state that was lost. What clients trust
    // meanwhile stays trusted, and the overlap starts again.
    let restored = |state: &State| {
        let mut state = state.clone().with_old(trusted.clone());
        state.overlap_since = None;
        Draft::Complete(state)
    };
    let (change, draft) = match (input.known, remainder) {
        (Some(known), _) => (Change::Restore, restored(known)),
        // No client trusts any CA: no leaf that is served can become invalid.
        (None, None) if trusted.is_empty() => (Change::Create, Draft::WithoutCurrent(trusted)),
        (None, _) if input.lost_for < RECOVERY_DELAY => return Vec::new(),
        (None, Some(remainder)) => (Change::Salvage, restored(remainder)),
        (None, None) => (Change::Replace, Draft::WithoutCurrent(trusted)),
    };
    vec![Action::Store(change, draft)]
}

impl PlanInput<'_> {
    /// The certificates of all bundles that are valid now.
    fn trusted_certificates(&self) -> Vec<CaCertificate> {
        let mut trusted = Vec::new();
        for certificate in self.bundles.iter().flatten() {
            let is_valid = certificate.validity().contains(self.now);
            if is_valid && !trusted.contains(certificate) && trusted.len() < ADOPTED_MAX {
                trusted.push(certificate.clone());
            }
        }
        trusted
    }

    /// No client ever trusted the current CA of the state: it was stored in place of the one
    /// that signed the leaves which are served. If this replica has the key of that one, the stored CA
    /// becomes the next; else the certificates that clients trust become old ones.
    fn keep_trusted_ca(&self, state: &State) -> Option<Action> {
        let is_usable = |trusted: &&State| {
            let certificate = trusted.current.certificate();
            certificate != state.current.certificate()
                && self.trust.is_trusted(certificate)
                && certificate.validity().contains(self.now)
        };
        if let Some(trusted) = self.last_trusted.filter(is_usable) {
            let with_next = State {
                next: Some(state.current.clone()),
                ..State::new(trusted.current.clone())
            };
            let old = state.old.iter().cloned().chain(self.trusted_certificates());
            let draft = Draft::Complete(with_next.with_old(old));
            return Some(Action::Store(Change::Reclaim, draft));
        }
        let bundle = state.bundle();
        let mut foreign = self.trusted_certificates();
        foreign.retain(|certificate| !bundle.contains(certificate));
        if foreign.is_empty() {
            return None;
        }
        let draft = Draft::Complete(state.clone().with_old(foreign));
        Some(Action::Store(Change::Adopt, draft))
    }

    /// The CA that has to sign a new leaf, if one is needed.
    fn leaf_signer<'s>(&self, state: &'s State, lifetimes: &Lifetimes) -> Option<&'s Ca> {
        let signer = state.signer(self.now, self.trust)?;
        let issuer = signer.certificate();
        let is_needed = match self.leaf {
            None => true,
            Some(leaf) if !leaf.validity.contains(self.now) => true,
            Some(leaf) if !state.bundle().contains(&leaf.issuer) => true,
            Some(leaf) if leaf.issuer != *issuer => {
                self.trust.trusted_for(issuer, self.uptime) >= Some(lifetimes.propagation())
            }
            // Shortly before the CA ends, a new leaf would end at the same time as the present one.
            Some(leaf) => {
                let longest = issuer.validity().not_after.min(self.now + lifetimes.leaf());
                leaf.renew_at <= self.now && leaf.validity.not_after < longest
            }
        };
        is_needed.then_some(signer)
    }

    /// The next step of the rotation, if it is due.
    fn next_change(&self, state: &State, lifetimes: &Lifetimes) -> Option<Action> {
        let now = self.now;
        let is_due = |ca: &Ca| {
            let validity = ca.validity();
            !validity.contains(now) || validity.renewal_due(lifetimes.ca()) <= now
        };
        let (change, draft) = match &state.next {
            // The rotation has been stuck for most of a CA's lifetime. The next CA may have signed if
            // the current one ended meanwhile, so its certificate stays trusted.
            Some(next) if is_due(next) => {
                let ended = next.certificate().clone();
                let without_next = State {
                    next: None,
                    ..state.clone()
                };
                let draft = Draft::WithoutNext(without_next.with_old([ended]));
                (Change::StoreNext, draft)
            }
            Some(next) => {
                let trusted_for = self.trust.trusted_for(next.certificate(), self.uptime)?;
                if trusted_for < lifetimes.propagation() {
                    return None;
                }
                let switched = state.switched_to(next.clone());
                (Change::Switch, Draft::Complete(switched))
            }
            None if is_due(&state.current) => {
                (Change::StoreNext, Draft::WithoutNext(state.clone()))
            }
            None if state.old.is_empty() => return None,
            None => match state.overlap_since {
                // A write of its own: the replica that wrote the switch may have been suspended
                // between reading the time and writing.
                None => {
                    let started = State {
                        overlap_since: Some(now),
                        ..state.clone()
                    };
                    (Change::StartOverlap, Draft::Complete(started))
                }
                Some(since) if self.is_overlap_over(state, since, lifetimes) => {
                    let dropped = State::new(state.current.clone());
                    (Change::Drop, Draft::Complete(dropped))
                }
                Some(_) => return None,
            },
        };
        Some(Action::Store(change, draft))
    }

    /// Whether no leaf of an old CA can be valid: every leaf has expired, or every old CA has.
    fn is_overlap_over(&self, state: &State, since: OffsetDateTime, lifetimes: &Lifetimes) -> bool {
        let margin = lifetimes.overlap() - lifetimes.leaf();
        let has_expired = |old: &CaCertificate| old.validity().not_after + margin < self.now;
        since + lifetimes.overlap() <= self.now || state.old.iter().all(has_expired)
    }
}
