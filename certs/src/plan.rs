//! What to do next, decided from what is there and the time alone.

use time::{Duration, OffsetDateTime};

use crate::leaf::Tenure;
use crate::lives::Lives;
use crate::state::{Ca, State, Trusted as _};
use crate::stored::Reading;
use crate::trust::Trust;

/// How long a replica that remembers nothing waits for one that does, when the state is lost.
/// Those who remember act at once, and try again when the store refuses.
pub const RECOVERY: Duration = Duration::seconds(20);

/// Certificates of others that are taken over from a bundle; more is no bundle of ours.
const ADOPTED_MAX: usize = 4;

/// What is known at one moment.
#[derive(Debug)]
pub struct Situation<'a, C: Ca> {
    /// What the store has.
    pub stored: &'a Reading<C>,
    /// The last whole state this replica has seen.
    pub known: Option<&'a State<C>>,
    /// The last state it has seen whose current CA clients trusted.
    pub proven: Option<&'a State<C>>,
    /// For how long this replica has known that the state is lost.
    pub lost_for: Duration,
    /// What each client configuration trusts.
    pub bundles: &'a [Vec<C::Certificate>],
    /// What they have been seen to trust.
    pub trust: &'a Trust<C::Certificate>,
    /// How long this replica runs: a clock nobody sets.
    pub uptime: Duration,
    /// The leaf this replica serves.
    pub leaf: Option<&'a Tenure<C::Certificate>>,
    /// The time.
    pub now: OffsetDateTime,
}

/// One thing to do.
#[derive(Debug, Clone)]
pub enum Step<C: Ca> {
    /// Sign a leaf with this CA, and serve it.
    Sign(C),
    /// Have every client trust these, and nothing else.
    Publish(Vec<C::Certificate>),
    /// Write the state over what was read, and look again.
    Store(Change, Draft<C>),
}

/// Why the state is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// There was none, and nobody trusted one.
    Create,
    /// It was lost, and this replica knows it.
    Restore,
    /// It was damaged; what was left will do.
    Salvage,
    /// It was lost, and so was the CA's key: a new CA.
    Replace,
    /// Somebody put another CA in the place of the one that clients trust: that one takes over in
    /// good order.
    Reclaim,
    /// The same, but the key of the former CA is lost; it stays trusted for a while.
    Adopt,
    /// The CA is in its last third: the next one is stored.
    Begin,
    /// Clients trust the next CA: it signs from now on.
    Switch,
    /// The old CA signs nothing any more: the overlap begins.
    Stamp,
    /// No leaf of the old CA can be valid any more.
    Drop,
}

/// A state, but for the CA that is still to be made.
#[derive(Debug, Clone)]
pub enum Draft<C: Ca> {
    /// Nothing is missing.
    Whole(State<C>),
    /// The current CA; these were trusted before.
    Current(Vec<C::Certificate>),
    /// The next CA of this state.
    Next(State<C>),
}

impl<C: Ca> Draft<C> {
    /// Makes what is missing.
    pub fn complete<E>(self, make: impl FnOnce() -> Result<C, E>) -> Result<State<C>, E> {
        Ok(match self {
            Self::Whole(state) => state,
            Self::Current(old) => State::of(make()?).with_old(old),
            Self::Next(state) => State {
                next: Some(make()?),
                ..state
            },
        })
    }
}

/// Decides. Nothing to do: no step. A step that fails is planned again as long as it is needed, so
/// it does not matter where a pass ends.
pub fn plan<C: Ca>(situation: &Situation<'_, C>, lives: &Lives) -> Vec<Step<C>> {
    let state = match situation.stored {
        Reading::Whole(state) => state,
        Reading::Lost { rest, .. } => return recover(situation, rest.as_ref()),
    };
    if !situation.trust.ever(state.current.certificate())
        && let Some(step) = situation.replaced(state)
    {
        return vec![step];
    }
    let mut steps = Vec::new();
    steps.extend(situation.signer(state, lives).cloned().map(Step::Sign));
    let bundle = state.bundle();
    if situation.bundles.iter().any(|there| *there != bundle) {
        steps.push(Step::Publish(bundle));
    }
    steps.extend(situation.change(state, lives));
    steps
}

/// The state is lost, but for `rest`.
fn recover<C: Ca>(situation: &Situation<'_, C>, rest: Option<&State<C>>) -> Vec<Step<C>> {
    let trusted = situation.trusted();
    // What is known, or left, may be older than what was lost: clients know better, and the overlap
    // begins anew.
    let again = |state: &State<C>| {
        let mut state = state.clone().with_old(trusted.clone());
        state.since = None;
        Draft::Whole(state)
    };
    let (change, draft) = match (situation.known, rest) {
        (Some(known), _) => (Change::Restore, again(known)),
        // Nobody trusts anything: there is nothing to lose.
        (None, None) if trusted.is_empty() => (Change::Create, Draft::Current(trusted)),
        (None, _) if situation.lost_for < RECOVERY => return Vec::new(),
        (None, Some(rest)) => (Change::Salvage, again(rest)),
        (None, None) => (Change::Replace, Draft::Current(trusted)),
    };
    vec![Step::Store(change, draft)]
}

impl<C: Ca> Situation<'_, C> {
    /// What any client trusts and may go on trusting for a while.
    fn trusted(&self) -> Vec<C::Certificate> {
        let mut trusted = Vec::new();
        for certificate in self.bundles.iter().flatten() {
            let holds = certificate.validity().contains(self.now);
            if holds && !trusted.contains(certificate) && trusted.len() < ADOPTED_MAX {
                trusted.push(certificate.clone());
            }
        }
        trusted
    }

    /// Clients never trusted the state's CA: somebody has put it in the place of another, of which
    /// leaves are served. With that one's key it becomes the next CA, in good order; without, what
    /// clients trust stays trusted for a while.
    fn replaced(&self, state: &State<C>) -> Option<Step<C>> {
        let usable = |proven: &&State<C>| {
            let certificate = proven.current.certificate();
            certificate != state.current.certificate()
                && self.trust.has(certificate)
                && proven.current.holds(self.now)
        };
        if let Some(proven) = self.proven.filter(usable) {
            let with_next = State {
                next: Some(state.current.clone()),
                ..State::of(proven.current.clone())
            };
            let with_next = with_next.with_old(state.old.iter().cloned().chain(self.trusted()));
            return Some(Step::Store(Change::Reclaim, Draft::Whole(with_next)));
        }
        let ours = state.bundle();
        let mut strangers = self.trusted();
        strangers.retain(|certificate| !ours.contains(certificate));
        let adopted = state.clone().with_old(strangers.iter().cloned());
        (!strangers.is_empty()).then_some(Step::Store(Change::Adopt, Draft::Whole(adopted)))
    }

    /// The CA that a new leaf is needed of.
    fn signer<'s>(&self, state: &'s State<C>, lives: &Lives) -> Option<&'s C> {
        let signer = state.signer(self.now, self.trust)?;
        let issuer = signer.certificate();
        let needed = match self.leaf {
            None => true,
            Some(leaf) if !leaf.validity.contains(self.now) => true,
            Some(leaf) if !state.bundle().contains(&leaf.issuer) => true,
            Some(leaf) if leaf.issuer != *issuer => {
                self.trust.lasts(issuer, self.uptime) >= Some(lives.propagation())
            }
            // Close to the end of the CA a new leaf would live no longer than the one there is.
            Some(leaf) => {
                let longest = issuer.validity().not_after.min(self.now + lives.leaf());
                leaf.due <= self.now && leaf.validity.not_after < longest
            }
        };
        needed.then_some(signer)
    }

    /// Where the rotation goes on.
    fn change(&self, state: &State<C>, lives: &Lives) -> Option<Step<C>> {
        let now = self.now;
        let due = |ca: &C| {
            let validity = ca.certificate().validity();
            !validity.contains(now) || validity.renewal_due(lives.authority()) <= now
        };
        let (change, draft) = match &state.next {
            // One that came to nothing for so long. It may have signed, when the current one ended.
            Some(next) if due(next) => {
                let ended = next.certificate().clone();
                let without = State {
                    next: None,
                    ..state.clone()
                };
                (Change::Begin, Draft::Next(without.with_old([ended])))
            }
            Some(next) => {
                let lasts = self.trust.lasts(next.certificate(), self.uptime)?;
                if lasts < lives.propagation() {
                    return None;
                }
                let state = state.switched(next.clone());
                (Change::Switch, Draft::Whole(state))
            }
            None if due(&state.current) => (Change::Begin, Draft::Next(state.clone())),
            None if state.old.is_empty() => return None,
            None => match state.since {
                // Only now: whoever wrote the switch may have slept since it read the time.
                None => (Change::Stamp, Draft::Whole(state.stamped(now))),
                Some(since) if self.is_over(state, since, lives) => {
                    (Change::Drop, Draft::Whole(State::of(state.current.clone())))
                }
                Some(_) => return None,
            },
        };
        Some(Step::Store(change, draft))
    }

    /// Whether no leaf of an old CA can be valid: each has ended, or its CA has.
    fn is_over(&self, state: &State<C>, since: OffsetDateTime, lives: &Lives) -> bool {
        let margin = lives.overlap() - lives.leaf();
        let ended = |old: &C::Certificate| old.validity().not_after + margin < self.now;
        since + lives.overlap() <= self.now || state.old.iter().all(ended)
    }
}
