//! Making and destroying the instances of one GPU, as one step function.
//!
//! The journal is written before anything is done, and one call of the driver is under way at a
//! time. A GPU instance is made at its placement, then its compute instance; they go in the other
//! order. Whatever fails is rolled back. What cannot be destroyed because a process uses it is tried
//! again, the process is asked to end, then killed.
use gpuos_model::mig::MigPlacement;

use super::claim::{Claim, JobPlacement, Phase, Shown};
use super::reconcile::{Action, Foreign, reconcile};
use crate::job::JobId;

/// Waits between tries to destroy double from this to [`LAST_MS`].
const FIRST_MS: u64 = 250;
/// The longest wait between two tries.
const LAST_MS: u64 = 30_000;
/// The try from which on processes are asked to end, and that from which on they are killed: 0.75
/// and 3.75 seconds after the first.
const ASK_AFTER: u32 = 3;
const KILL_AFTER: u32 = 5;

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A job's prolog wants an instance. Asked again, the answer comes again.
    Carve {
        /// The job.
        job: JobId,
        /// NVML's id of the profile.
        profile: u32,
        /// Where.
        placement: MigPlacement,
    },
    /// A job is over on this GPU.
    Release {
        /// The job.
        job: JobId,
    },
    /// The journal with this revision is on the disk.
    Saved(u64),
    /// What the driver says to the call that was under way.
    Done(Answer),
    /// What NVML shows and Slurm holds, at start and whenever they could differ from the journal.
    Seen {
        /// All GPU instances.
        shown: Vec<Shown>,
        /// Placements of running jobs.
        held: Vec<JobPlacement>,
        /// What is done about instances of nobody.
        foreign: Foreign,
    },
    /// Time has passed.
    Tick,
}

/// How a call of the driver ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The GPU instance is there.
    GpuMade {
        /// Its id.
        gi: u32,
    },
    /// The compute instance is there.
    ComputeMade {
        /// Its id.
        ci: u32,
        /// `MIG-…`.
        uuid: String,
    },
    /// What was to be destroyed is gone, or was not there.
    Gone,
    /// A process uses it.
    Busy {
        /// The processes.
        pids: Vec<u32>,
    },
    /// The driver refused.
    Refused {
        /// Its sentence.
        why: String,
    },
}

/// What is to be done, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Write the journal, all of it at once; answer with [`Event::Saved`].
    Save {
        /// Its revision.
        revision: u64,
        /// All claims.
        claims: Vec<Claim>,
    },
    /// Make a GPU instance at a placement; answer with [`Event::Done`], as to all that follow up to
    /// [`Effect::DestroyGpu`].
    MakeGpu {
        /// NVML's id of the profile.
        profile: u32,
        /// Where.
        placement: MigPlacement,
    },
    /// Make the compute instance that takes all of a GPU instance.
    MakeCompute {
        /// The GPU instance.
        gi: u32,
    },
    /// Destroy all compute instances of a GPU instance; [`Answer::Gone`] when there is none.
    DestroyCompute {
        /// The GPU instance.
        gi: u32,
    },
    /// Destroy a GPU instance.
    DestroyGpu {
        /// Its id.
        gi: u32,
    },
    /// Tell the job's prolog that its instance can be used.
    Ready {
        /// The job.
        job: JobId,
        /// The GPU instance.
        gi: u32,
        /// Its compute instance.
        ci: u32,
        /// `MIG-…`.
        uuid: String,
    },
    /// Tell the job's prolog that there will be none: the job is requeued or fails.
    Failed {
        /// The job.
        job: JobId,
        /// A sentence.
        why: String,
    },
    /// Processes hold an instance whose job is over.
    Signal {
        /// The processes.
        pids: Vec<u32>,
        /// Kill them; otherwise ask them to end.
        kill: bool,
    },
    /// Tell the log.
    Warn(String),
}

/// A claim, and what is being done about it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Live {
    claim: Claim,
    /// The GPU instance, as far as it is known to be there.
    gi: Option<u32>,
    /// Its compute instance is known to be gone.
    bare: bool,
    tries: u32,
    /// Not before this time, in ms.
    due: u64,
}

/// An instance of nobody that policy wants destroyed has no claim and this number.
const NOBODYS: u64 = 0;

/// The instances of one GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Carver {
    live: Vec<Live>,
    /// Revision of the journal as it should be, and as it is on the disk.
    revision: u64,
    saved: u64,
    next: u64,
    /// The claim whose driver call is under way.
    flight: Option<u64>,
    /// Nothing is done before NVML and Slurm have been looked at.
    seen: bool,
}

impl Carver {
    /// What a daemon knows that starts: its journal. Nothing is done before [`Event::Seen`].
    pub fn restore(journal: Vec<Claim>) -> Carver {
        let next = journal
            .iter()
            .map(|claim| claim.id)
            .max()
            .map_or(1, |id| id.saturating_add(1));
        let live = journal.into_iter().map(Live::new).collect();
        Carver {
            live,
            next,
            ..Carver::default()
        }
    }

    /// The journal as it should be.
    pub fn claims(&self) -> Vec<Claim> {
        let journalled = self.live.iter().filter(|live| live.claim.id != NOBODYS);
        journalled.map(|live| live.claim.clone()).collect()
    }

    /// Whether nothing is under way, to be done or to be written.
    pub fn quiet(&self) -> bool {
        let done = |live: &Live| matches!(live.claim.phase, Phase::Ready { .. });
        self.flight.is_none() && self.saved == self.revision && self.live.iter().all(done)
    }

    /// Whether a call of the driver is under way: what NVML showed before it has ended is not the last word.
    pub fn calling(&self) -> bool {
        self.flight.is_some()
    }

    /// Whether NVML and Slurm have been looked at: before, the journal may name what is not there any more.
    pub fn is_reconciled(&self) -> bool {
        self.seen
    }

    /// Revision of the journal as it should be on the disk.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn save(&mut self, effects: &mut Vec<Effect>) {
        self.revision += 1;
        effects.push(Effect::Save {
            revision: self.revision,
            claims: self.claims(),
        });
    }

    fn of(&mut self, id: u64) -> Option<&mut Live> {
        self.live.iter_mut().find(|live| live.claim.id == id)
    }
}

impl Live {
    fn new(claim: Claim) -> Live {
        let gi = match claim.phase {
            Phase::Made { gi } | Phase::Ready { gi, .. } => Some(gi),
            Phase::Wanted | Phase::Going => None,
        };
        Live {
            claim,
            gi,
            bare: false,
            tries: 0,
            due: 0,
        }
    }

    fn going(&self) -> bool {
        self.claim.phase == Phase::Going
    }
}

/// What follows from an event at `now` in ms. Effects are to be done in their order. No event is an
/// error: an answer to no call, or a job that is not known, changes nothing.
pub fn step(carver: &mut Carver, event: Event, now: u64) -> Vec<Effect> {
    let mut effects = Vec::new();
    match event {
        Event::Carve {
            job,
            profile,
            placement,
        } => carve(carver, &mut effects, job, profile, placement),
        Event::Release { job } => release(carver, &mut effects, &job, now),
        Event::Saved(revision) => carver.saved = carver.saved.max(revision.min(carver.revision)),
        Event::Done(answer) => done(carver, &mut effects, answer, now),
        Event::Seen {
            shown,
            held,
            foreign,
        } => seen(carver, &mut effects, (&shown, &held, foreign), now),
        Event::Tick => {}
    }
    advance(carver, &mut effects, now);
    effects
}

fn carve(
    carver: &mut Carver,
    effects: &mut Vec<Effect>,
    job: JobId,
    profile: u32,
    placement: MigPlacement,
) {
    let same = |live: &&Live| {
        let claim = &live.claim;
        !live.going()
            && claim.job == job
            && (claim.profile, claim.placement) == (profile, placement)
    };
    if let Some(live) = carver.live.iter().find(same) {
        effects.extend(ready(&live.claim));
        return;
    }
    let taken = |live: &&Live| !live.going() && live.claim.placement.overlaps(placement);
    if let Some(other) = carver.live.iter().find(taken) {
        let why = format!("its memory slices belong to job {}", other.claim.job);
        effects.push(Effect::Failed { job, why });
        return;
    }
    let claim = Claim {
        id: carver.next.max(1),
        job,
        profile,
        placement,
        phase: Phase::Wanted,
    };
    carver.next = claim.id.saturating_add(1);
    carver.live.push(Live::new(claim));
    carver.save(effects);
}

fn ready(claim: &Claim) -> Option<Effect> {
    match &claim.phase {
        Phase::Ready { gi, ci, uuid } => Some(Effect::Ready {
            job: claim.job.clone(),
            gi: *gi,
            ci: *ci,
            uuid: uuid.clone(),
        }),
        _ => None,
    }
}

fn release(carver: &mut Carver, effects: &mut Vec<Effect>, job: &JobId, now: u64) {
    let mine = carver
        .live
        .iter_mut()
        .filter(|live| live.claim.job == *job && !live.going());
    let mut any = false;
    for live in mine.filter(|live| live.claim.id != NOBODYS) {
        live.claim.phase = Phase::Going;
        (live.tries, live.due, any) = (0, now, true);
    }
    if any {
        carver.save(effects);
    }
}

fn done(carver: &mut Carver, effects: &mut Vec<Effect>, answer: Answer, now: u64) {
    let Some(id) = carver.flight.take() else {
        return;
    };
    let others = carver.live.iter().any(Live::going);
    let Some(live) = carver.of(id) else {
        return;
    };
    let going = live.going();
    match answer {
        Answer::GpuMade { gi } => {
            live.gi = Some(gi);
            if !going {
                live.claim.phase = Phase::Made { gi };
                carver.save(effects);
            }
        }
        Answer::ComputeMade { ci, uuid } => {
            live.bare = false;
            if let (Some(gi), false) = (live.gi, going) {
                live.claim.phase = Phase::Ready { gi, ci, uuid };
                effects.extend(ready(&live.claim));
                carver.save(effects);
            }
        }
        Answer::Gone if going && live.bare => over(carver, effects, id),
        Answer::Gone if going => live.bare = true,
        Answer::Gone => {}
        Answer::Busy { pids } => busy(live, effects, pids, now),
        Answer::Refused { why } if going => {
            // Neither gone nor in use: nothing to do but to try again, and to say so.
            let what = format!(
                "an instance of job {} is not destroyed: {why}",
                live.claim.job
            );
            effects.push(Effect::Warn(what));
            later(live, now);
        }
        // What goes may still have what is missing, such as the one media extension.
        Answer::Refused { .. } if live.gi.is_none() && live.tries == 0 && others => {
            live.tries = 1;
        }
        Answer::Refused { why } => {
            let job = &live.claim.job;
            effects.push(Effect::Failed {
                job: job.clone(),
                why,
            });
            live.claim.phase = Phase::Going;
            carver.save(effects);
        }
    }
}

/// A process holds what is to be destroyed.
fn busy(live: &mut Live, effects: &mut Vec<Effect>, pids: Vec<u32>, now: u64) {
    later(live, now);
    let (job, tries) = (live.claim.job.clone(), live.tries);
    if live.claim.id == NOBODYS || tries < ASK_AFTER || pids.is_empty() {
        return;
    }
    let named: Vec<String> = pids.iter().map(u32::to_string).collect();
    if tries >= KILL_AFTER {
        effects.push(Effect::Warn(format!(
            "processes {} hold the MIG instance of job {job}, which is over, after {tries} tries to destroy it",
            named.join(", ")
        )));
    }
    effects.push(Effect::Signal {
        pids,
        kill: tries >= KILL_AFTER,
    });
}

fn later(live: &mut Live, now: u64) {
    let wait = FIRST_MS << live.tries.min(10);
    live.tries += 1;
    live.due = now.saturating_add(wait.min(LAST_MS));
}

/// A claim is over; its end is written down before its placement is used again.
fn over(carver: &mut Carver, effects: &mut Vec<Effect>, id: u64) {
    carver.live.retain(|live| live.claim.id != id);
    if id != NOBODYS {
        carver.save(effects);
    }
}

fn seen(
    carver: &mut Carver,
    effects: &mut Vec<Effect>,
    (shown, held, foreign): (&[Shown], &[JobPlacement], Foreign),
    now: u64,
) {
    // A call under way changes what was seen: the daemon looks again when it has ended.
    if carver.flight.is_some() {
        return;
    }
    carver.seen = true;
    carver.live.retain(|live| live.claim.id != NOBODYS);
    let before = carver.claims();
    let plan = reconcile(shown, held, &before, foreign);
    for gi in plan.foreign {
        effects.push(Effect::Warn(format!(
            "GPU instance {gi} was made by nobody that gpuos knows"
        )));
    }
    for action in plan.actions {
        act(carver, effects, action, shown, now);
    }
    if carver.claims() != before {
        carver.save(effects);
    }
}

fn act(carver: &mut Carver, effects: &mut Vec<Effect>, action: Action, shown: &[Shown], now: u64) {
    match action {
        Action::Destroy { id: Some(id), gi } => {
            if let Some(live) = carver.of(id) {
                live.claim.phase = Phase::Going;
                (live.gi, live.bare, live.tries, live.due) = (Some(gi), false, 0, now);
            }
        }
        Action::Destroy { id: None, gi } => {
            let Some(instance) = shown.iter().find(|instance| instance.gi == gi) else {
                return;
            };
            // One at a time: the next look finds the others.
            if carver.of(NOBODYS).is_none() {
                let mut live = Live::new(Claim {
                    id: NOBODYS,
                    job: 0.into(),
                    profile: instance.profile,
                    placement: instance.placement,
                    phase: Phase::Going,
                });
                (live.gi, live.due) = (Some(gi), now);
                carver.live.push(live);
            }
        }
        Action::Forget { id } => carver.live.retain(|live| live.claim.id != id),
        Action::Fail { id, job, why } => {
            effects.push(Effect::Failed { job, why });
            carver.live.retain(|live| live.claim.id != id);
        }
        Action::Adopt { claim } => {
            effects.extend(ready(&claim));
            carver.next = carver.next.max(claim.id.saturating_add(1));
            carver.live.retain(|live| live.claim.id != claim.id);
            carver.live.push(Live::new(claim));
        }
        Action::MakeCompute { id, gi } => {
            if let Some(live) = carver.of(id) {
                live.claim.phase = Phase::Made { gi };
                live.gi = Some(gi);
            }
        }
        Action::MakeGpu { id } => {
            if let Some(live) = carver.of(id) {
                live.claim.phase = Phase::Wanted;
                live.gi = None;
            }
        }
    }
}

/// The next call of the driver, when none is under way and the journal is on the disk.
fn advance(carver: &mut Carver, effects: &mut Vec<Effect>, now: u64) {
    // What was never made, or is gone, needs no call.
    let nothing = |live: &Live| live.going() && live.gi.is_none();
    let over: Vec<u64> = carver
        .live
        .iter()
        .filter(|live| nothing(live))
        .map(|l| l.claim.id)
        .collect();
    let idle = carver.flight.is_none() && carver.seen;
    if idle && !over.is_empty() {
        carver.live.retain(|live| !over.contains(&live.claim.id));
        carver.save(effects);
    }
    if !idle || carver.saved != carver.revision {
        return;
    }
    let call = carver
        .live
        .iter()
        .find_map(|live| Some((live.claim.id, call(carver, live, now)?)));
    if let Some((id, call)) = call {
        carver.flight = Some(id);
        effects.push(call);
    }
}

/// What is to be done about a claim now, if anything.
fn call(carver: &Carver, live: &Live, now: u64) -> Option<Effect> {
    let waits = || {
        let mut before = carver.live.iter().filter(|other| other.going());
        before.any(|other| live.tries > 0 || other.claim.placement.overlaps(live.claim.placement))
    };
    match (&live.claim.phase, live.gi) {
        (Phase::Wanted, _) if !waits() => Some(Effect::MakeGpu {
            profile: live.claim.profile,
            placement: live.claim.placement,
        }),
        (Phase::Made { gi }, _) => Some(Effect::MakeCompute { gi: *gi }),
        (Phase::Going, Some(gi)) if now >= live.due => Some(match live.bare {
            false => Effect::DestroyCompute { gi },
            true => Effect::DestroyGpu { gi },
        }),
        _ => None,
    }
}
