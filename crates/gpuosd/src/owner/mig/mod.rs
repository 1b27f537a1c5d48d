//! MIG instances of jobs: what [`gpuos_core::mig::carve`] is told, and what it says.
//!
//! Only what Slurm's own record gives to a job is made for it. A job's grant is its bits of GRES `gpuos` and the instances
//! that they are; it stands until Slurm says that the job is gone ([`steps`]).

mod health;
mod held;
mod memory;
mod mode;
mod status;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpuos_config::gpuos_toml::MigConfig;
use gpuos_core::health::{Audit, number};
use gpuos_core::mig::carve::{self, Answer, Carver, Effect, Event};
use gpuos_core::mig::{Claim, Phase};
use gpuos_model::gpuset::GpuSet;

use mode::Switch;
use steps::{Ending, Waiting};

use super::{Message, Owner};
use crate::disk::Ack;
use crate::mig::pool::{Grant, Journal, Moving, Piece, Pool, held, layout, slices_text, unknown};
use crate::mig::{Task, Told, View};
use crate::queue::Task as WorkloadTask;
use crate::slices::Layout;

/// What NVML shows is looked at so often, and Slurm's jobs while there are grants.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// A gres.conf that does not fit `moving` is read again so often.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// Slice files of one GPU.
#[derive(Default)]
struct Files {
    /// As the thread was last told to write them, and as they are.
    sent: Option<Layout>,
    written: Option<Layout>,
    trouble: Option<String>,
}

/// All that the owner holds of MIG.
#[derive(Default)]
pub(super) struct Mig {
    pool: Option<Pool>,
    /// The GPUs that are in MIG mode for good by NVML's index, and those that move, as gpuos.toml had them when it could be
    /// read last.
    divided: GpuSet,
    moving: Moving,
    /// Changes of MIG mode that jobs wait for.
    switches: BTreeMap<u8, Switch>,
    carvers: BTreeMap<u8, Carver>,
    views: BTreeMap<u8, Result<Box<View>, String>>,
    memory: memory::Polls,
    grants: BTreeMap<u32, Grant>,
    /// Steps that run, of jobs with slices, and the bits that each was started with.
    steps: BTreeMap<u32, BTreeMap<u32, u64>>,
    waiting: Vec<Waiting>,
    /// GPUs that move and that steps of these jobs have whole, while such steps run.
    served: BTreeMap<u32, BTreeSet<u8>>,
    /// Jobs that could not get their instances, until slurmctld has answered what becomes of them.
    endings: BTreeMap<u32, Ending>,
    /// How often that was so here, since they last had them.
    failures: BTreeMap<u32, u32>,
    /// Jobs that are held until the driver answers again, and when Slurm was told last to let them go.
    held_jobs: BTreeMap<u32, crate::mig::pool::HeldJob>,
    let_go: Option<Instant>,
    files: BTreeMap<u8, Files>,
    /// Jobs that Slurm is asked about, when next, and how long after that again.
    asks: BTreeMap<u32, (Instant, Duration)>,
    /// Slurm has told all jobs of the node.
    known: bool,
    /// When it was asked for them, and which of them ran and did not end.
    told: Option<Instant>,
    running: BTreeSet<u32>,
    /// Bits that Slurm had given to jobs then, with or without a grant.
    given: BTreeMap<u32, u64>,
    /// Whether it would requeue these jobs.
    requeue: BTreeMap<u32, bool>,
    /// gpuos.toml has been read.
    configured: bool,
    /// Looks that are under way, since when, and when the last one began that has ended; those that are to be repeated.
    looking: BTreeMap<u8, Instant>,
    seen: BTreeMap<u8, Instant>,
    again: BTreeSet<u8>,
    looked: Option<Instant>,
    /// When instances were counted for the health rules.
    counted: Option<Instant>,
    /// When gres.conf was to be read again last.
    renewed: Option<Instant>,
    /// spank_gpuos could not be told which GPUs move: when that is tried again.
    untold: Option<Instant>,
    /// What was warned of and still holds.
    warned: BTreeSet<(u8, String)>,
    unsaved: bool,
}

impl Mig {
    pub(super) fn restore(journal: Journal) -> Mig {
        let carvers = journal.claims.into_iter();
        Mig {
            carvers: carvers
                .map(|(gpu, claims)| (gpu, Carver::restore(claims)))
                .collect(),
            grants: journal.grants,
            failures: journal.failures,
            held_jobs: journal.held,
            divided: journal.pool,
            moving: journal.moving,
            given: journal.given,
            ..Mig::default()
        }
    }

    pub(super) fn journal(&self) -> Journal {
        let claims = self.carvers.iter();
        let claims = claims.map(|(gpu, carver)| (*gpu, carver.claims()));
        Journal {
            claims: claims.filter(|(_, claims)| !claims.is_empty()).collect(),
            grants: self.grants.clone(),
            failures: self.failures.clone(),
            held: self.held_jobs.clone(),
            pool: self.divided,
            moving: self.moving.clone(),
            given: self.given.clone(),
        }
    }

    /// Whether all of a job's instances can be used, and its slice files say so. `None`: not yet.
    fn ready(&self, job: u32, grant: &Grant) -> Option<()> {
        for piece in &grant.pieces {
            let carver = self.carvers.get(&piece.gpu)?;
            carver.looked().then_some(())?;
            let claims = carver.claims();
            let at = claims.iter().find(|claim| {
                (claim.job, claim.window, claim.profile) == (job, piece.window, piece.profile)
                    && matches!(claim.phase, Phase::Ready { .. })
            })?;
            let files = self.files.get(&piece.gpu)?.written.as_ref()?;
            let Phase::Ready { gi, ci, .. } = at.phase else {
                return None;
            };
            let start = usize::from(piece.window.start);
            let own = files.get(start..start + usize::from(piece.window.size))?;
            own.iter()
                .all(|slice| *slice == Some((gi, ci)))
                .then_some(())?;
        }
        Some(())
    }

    /// Whether what a job is to have is being made, or there.
    fn is_claimed(&self, job: u32, piece: &Piece) -> bool {
        let carver = self.carvers.get(&piece.gpu);
        let claims = carver.map(Carver::claims).unwrap_or_default();
        claims.iter().any(|claim| {
            (claim.job, claim.window, claim.profile) == (job, piece.window, piece.profile)
                && claim.phase != Phase::Going
        })
    }

    /// Number of a GPU by NVML's index, as in [`gpuos_core::health::number`]: in GRES `gpu`, if it moves.
    fn number(&self, gpu: u8) -> Option<u8> {
        let whole = self.moving.get(&gpu).copied();
        whole.or_else(|| number::of_pool(gpu))
    }

    /// NVML's index of a GPU of the pool; `None`: it is none.
    pub(super) fn index(&self, number: u8) -> Option<u8> {
        let mut moving = self.moving.iter();
        let moving = moving.find(|(_, gres)| **gres == number);
        moving
            .map(|(gpu, _)| *gpu)
            .or_else(|| number::pool_index(number))
    }

    fn uuid(&self, gpu: u8, of: impl Fn(&Claim) -> bool) -> Option<String> {
        let claims = self.carvers.get(&gpu)?.claims();
        claims
            .into_iter()
            .find(of)
            .and_then(|claim| match claim.phase {
                Phase::Ready { uuid, .. } => Some(uuid),
                _ => None,
            })
    }

    /// Slices that jobs hold by Slurm's records, on one GPU.
    fn held(&self, gpu: u8) -> Vec<gpuos_core::mig::Held> {
        let own = |window| {
            let view = self.views.get(&gpu)?.as_ref().ok()?;
            let mut on = view.shown.iter().filter(|one| one.window == window);
            view.jobs.get(&on.next()?.gi).copied()
        };
        let mut all = held(&self.grants, gpu, own);
        if let Some(pool) = &self.pool
            && let Some(first) = pool.first(gpu)
        {
            let slices = pool.geometry.slices();
            all.extend(unknown(&self.given, &self.grants, (first, slices)));
        }
        all
    }
}

impl Owner {
    /// Whether spank_gpuos could be told which GPUs move; if not, that is tried again.
    pub(super) fn mig_untold(&mut self, why: Option<String>) {
        let again = self.now() + LOOK_EVERY;
        self.mig.untold = why.is_some().then_some(again);
        self.trouble("moving-file", why);
    }

    /// gpuos.toml was read.
    pub(super) fn mig_configured(&mut self, config: &MigConfig) {
        let pool = Pool::of(config, &self.node);
        self.mig.configured = true;
        let moving = pool
            .as_ref()
            .map(|pool| pool.moving.clone())
            .unwrap_or_default();
        let before = std::mem::replace(&mut self.mig.moving, moving.clone());
        for gpu in before
            .values()
            .filter(|gpu| !moving.values().any(|one| one == *gpu))
        {
            self.health.undivided(*gpu);
        }
        for gpu in pool.iter().flat_map(|pool| &pool.gpus) {
            self.mig.carvers.entry(*gpu).or_default();
            if let Some(gpu) = self.mig.number(*gpu) {
                self.know_pooled(gpu);
            }
        }
        if pool.is_some() && self.mig.pool != pool {
            self.look = self.now();
        }
        let gpus = pool.iter().flat_map(|pool| &pool.gpus);
        let fixed = gpus.filter(|gpu| !moving.contains_key(gpu));
        let divided = fixed.fold(GpuSet::EMPTY, |all, gpu| all.with(usize::from(*gpu)));
        if std::mem::replace(&mut self.mig.divided, divided) != divided || before != moving {
            self.save(None);
        }
        self.mig.pool = pool;
        let all: Vec<u8> = self.mig.carvers.keys().copied().collect();
        for gpu in all {
            self.mig_files(gpu);
            self.mig_look(gpu);
        }
        self.mig_answer();
    }

    pub(super) fn mig(&mut self, gpu: u8, told: Told) {
        match told {
            Told::Changed => {
                self.mig_changed(gpu);
                self.mig_look(gpu);
            }
            Told::Saved(revision, Ok(())) => self.mig_event(gpu, Event::Saved(revision)),
            // Nothing is done before the journal is on the disk: it is written again.
            Told::Saved(_, Err(_)) => self.mig.unsaved = true,
            Told::Done(answer) => {
                if let Answer::Refused { why } = &answer {
                    tracing::warn!(gpu, "the driver refused: {why}");
                }
                self.mig_done(gpu, &answer);
                self.mig_event(gpu, Event::Done(answer));
                if self.mig.again.remove(&gpu) {
                    self.mig_look(gpu);
                }
            }
            Told::Shown(view) => self.mig_shown(gpu, view),
            Told::Memory(memory, load) => self.mig_memory(gpu, memory, load),
            Told::Mode(on, told) => self.mig_switched(gpu, on, told),
            Told::Files(layout, written) => {
                let files = self.mig.files.entry(gpu).or_default();
                files.trouble = written.as_ref().err().cloned();
                match written {
                    Ok(()) => files.written = Some(layout),
                    // Written again with the next tick.
                    Err(_) if files.sent.as_ref() == Some(&layout) => files.sent = None,
                    Err(_) => {}
                }
            }
        }
        self.mig_troubles();
        self.mig_answer();
    }

    fn mig_shown(&mut self, gpu: u8, mut view: Result<Box<View>, String>) {
        if let Some(began) = self.mig.looking.remove(&gpu) {
            self.mig.seen.insert(gpu, began);
        }
        if let (Ok(view), true) = (&mut view, self.mig.moving.contains_key(&gpu)) {
            // Then it is as it is to be.
            view.unfit = view.unfit.take().filter(|_| !view.whole);
        }
        if self.mig.again.remove(&gpu) {
            self.mig_look(gpu);
        }
        let shown = view.as_ref().ok().map(|view| view.shown.clone());
        self.mig.views.insert(gpu, view);
        if let Some(shown) = shown {
            // What is over may be warned of again.
            self.mig.warned.retain(|(of, text)| {
                let stays = |gi| text.starts_with(&format!("GPU {gpu}: GPU instance {gi} "));
                *of != gpu || shown.iter().any(|instance| stays(instance.gi))
            });
            if self.mig.known {
                let held = self.mig.held(gpu);
                let pool = self.mig.pool.as_ref();
                let foreign = pool.map(|pool| pool.foreign).unwrap_or_default();
                self.mig.again.extend(
                    self.mig
                        .carvers
                        .get(&gpu)
                        .filter(|c| c.calling())
                        .map(|_| gpu),
                );
                self.mig_event(
                    gpu,
                    Event::Seen {
                        shown,
                        held,
                        foreign,
                    },
                );
            }
        }
        self.mig_count(gpu);
        self.mig_carve(gpu);
    }

    /// Has made on a GPU what steps wait for.
    fn mig_carve(&mut self, gpu: u8) {
        let unfit = match self.mig.views.get(&gpu) {
            Some(Ok(view)) => view.unfit.clone(),
            Some(Err(why)) => Some(format!("GPU {gpu}: {why}")),
            None => return,
        };
        let switching = self.mig.switches.contains_key(&gpu);
        let whole =
            matches!(self.mig.views.get(&gpu), Some(Ok(view)) if view.whole && unfit.is_none());
        let mut switch = false;
        let out = self.mig_out(gpu);
        let wanted = self.mig.grants.iter().filter(|(_, grant)| grant.wanted);
        let wanted: Vec<(u32, Grant)> = wanted.map(|(job, grant)| (*job, grant.clone())).collect();
        for (job, grant) in wanted {
            let own = grant.pieces.iter().filter(|piece| piece.gpu == gpu);
            for piece in own {
                if self.mig.is_claimed(job, piece) {
                    continue;
                }
                if let Some(why) = &out {
                    self.mig_withheld(job, why);
                    break;
                }
                if let Some(why) = &unfit {
                    self.mig_fail(job, why);
                    break;
                }
                if whole || switching {
                    switch |= whole;
                    break;
                }
                self.mig_event(
                    gpu,
                    Event::Carve {
                        job,
                        profile: piece.profile,
                        window: piece.window,
                    },
                );
            }
        }
        if switch {
            self.mig_want(gpu, true);
        }
    }

    /// Tells the step function of a GPU, and has done what it says.
    fn mig_event(&mut self, gpu: u8, event: Event) {
        let now = self.now().duration_since(self.began).as_millis() as u64;
        let Some(carver) = self.mig.carvers.get_mut(&gpu) else {
            return;
        };
        let before = carver.claims();
        let effects = carve::step(carver, event, now);
        let after = carver.claims();
        self.mig_audit(gpu, &before, &after);
        // Nobody may open an instance that goes: before it is destroyed.
        self.mig_files(gpu);
        let mut failed = Vec::new();
        for effect in effects {
            match effect {
                Effect::Save { revision, .. } => self.mig_save(gpu, revision),
                call @ (Effect::MakeGpu { .. }
                | Effect::MakeCompute { .. }
                | Effect::DestroyCompute { .. }
                | Effect::DestroyGpu { .. }) => self.ports.mig.begin(gpu, Task::Call(call)),
                Effect::Ready { .. } => {}
                Effect::Failed { job, why } => failed.push((job, why)),
                Effect::Signal { pids, kill } => {
                    self.ports.mig.begin(gpu, Task::Signal { pids, kill });
                }
                Effect::Warn(text) => self.mig_warn(gpu, text),
            }
        }
        for (job, why) in failed {
            let who = self.mig_users(gpu, job);
            self.mig_fail(job, &format!("GPU {gpu}: {why}{who}"));
        }
    }

    /// The processes on instances of nobody that are where a job's are to be: `; used by …`.
    fn mig_users(&self, gpu: u8, job: u32) -> String {
        let (Some(Ok(view)), Some(grant)) = (self.mig.views.get(&gpu), self.mig.grants.get(&job))
        else {
            return String::new();
        };
        let pieces = grant.pieces.iter().filter(|piece| piece.gpu == gpu);
        let windows: Vec<_> = pieces.map(|piece| piece.window).collect();
        let there = view.shown.iter().filter(|instance| {
            windows
                .iter()
                .any(|window| window.overlaps(instance.window))
        });
        let pids = there
            .filter_map(|instance| view.pids.get(&instance.gi))
            .flatten();
        let names = pids.filter_map(|pid| view.names.get(pid)).take(4);
        let names: Vec<&str> = names.map(String::as_str).collect();
        match names.is_empty() {
            true => String::new(),
            false => format!("; used by {}", names.join(", ")),
        }
    }

    fn mig_save(&mut self, gpu: u8, revision: u64) {
        let to = self.ports.to.clone();
        let ack: Ack = Box::new(move |told| {
            let _ = to.send(Message::Mig(gpu, Told::Saved(revision, told)));
        });
        self.save(Some(ack));
    }

    /// Has the slice files of a GPU written, where they are not as they should be.
    fn mig_files(&mut self, gpu: u8) {
        let (Some(pool), Some(carver)) = (&self.mig.pool, self.mig.carvers.get(&gpu)) else {
            return;
        };
        if pool.first(gpu).is_none() {
            return;
        }
        let wanted = layout(&carver.claims(), pool.geometry.slices());
        let files = self.mig.files.entry(gpu).or_default();
        if files.sent.as_ref() != Some(&wanted) {
            files.sent = Some(wanted.clone());
            self.ports.mig.begin(gpu, Task::Files(wanted));
        }
    }

    pub(super) fn mig_look(&mut self, gpu: u8) {
        if self.mig.looking.contains_key(&gpu) {
            self.mig.again.insert(gpu);
            return;
        }
        self.mig.looking.insert(gpu, self.now());
        self.ports.mig.begin(gpu, Task::Look);
    }

    fn mig_look_all(&mut self) {
        for gpu in self.mig.carvers.keys().copied().collect::<Vec<u8>>() {
            self.mig_look(gpu);
        }
        self.mig.looked = Some(self.now());
    }

    /// Time went by.
    pub(super) fn tick_mig(&mut self) {
        if self.mig.untold.is_some_and(|due| self.now() >= due) {
            self.mig.untold = None;
            self.queue.push(WorkloadTask::Config);
        }
        if self.mig.carvers.is_empty() && self.mig.waiting.is_empty() {
            return;
        }
        self.tick_mig_held();
        let now = self.now();
        let unsaved = std::mem::take(&mut self.mig.unsaved);
        for gpu in self.mig.carvers.keys().copied().collect::<Vec<u8>>() {
            self.mig_event(gpu, Event::Tick);
            if unsaved && let Some(carver) = self.mig.carvers.get(&gpu) {
                self.mig_save(gpu, carver.revision());
            }
        }
        let renewed = self.mig.renewed.unwrap_or(self.began);
        if now.duration_since(renewed) >= RENEW_EVERY && self.mig_misnumbered().is_some() {
            self.mig.renewed = Some(now);
            self.ports.numbering.renew();
        }
        if self
            .mig
            .looked
            .is_none_or(|at| now.duration_since(at) >= LOOK_EVERY)
        {
            self.mig_look_all();
        }
        self.tick_mig_unread();
        self.tick_mig_memory();
        self.mig_count_again(now);
        if !self.mig.grants.is_empty() || !self.mig.known {
            self.look = self.look.min(self.looked + LOOK_EVERY);
        }
        if now >= self.not_before {
            let waits = self.mig.waiting.iter();
            let waits = waits.filter(|one| !one.granted && one.failed.is_none());
            let due = self.mig.asks.iter().filter(|(_, (due, _))| now >= *due);
            let asks: BTreeSet<u32> = waits
                .map(|one| one.id.job)
                .chain(due.map(|(job, _)| *job))
                .collect();
            for job in asks {
                self.queue.push_first(WorkloadTask::Job(job));
            }
            let endings = self.mig.endings.values();
            for act in endings
                .filter_map(Ending::task)
                .collect::<Vec<WorkloadTask>>()
            {
                self.queue.push_first(act);
            }
        }
        self.mig_troubles();
        self.mig_answer();
    }

    fn mig_troubles(&mut self) {
        let files = self
            .mig
            .files
            .values()
            .find_map(|files| files.trouble.clone());
        self.trouble("slices", files);
        self.trouble("moving", self.mig_misnumbered());
        let unfit = self.mig.views.iter().find_map(|(gpu, view)| match view {
            Ok(view) => view.unfit.clone(),
            Err(why) => Some(format!("GPU {gpu}: {why}")),
        });
        self.trouble("mig", unfit);
    }

    /// Warns of what holds, once.
    fn mig_warn(&mut self, gpu: u8, text: String) {
        let text = format!("GPU {gpu}: {text}");
        if self.mig.warned.insert((gpu, text.clone())) {
            tracing::warn!(gpu, "{text}");
            self.mig_note(None, text);
        }
    }

    /// Writes down which instances have come and gone.
    fn mig_audit(&mut self, gpu: u8, before: &[Claim], after: &[Claim]) {
        let old = |id: u64| before.iter().find(|claim| claim.id == id);
        let what = |pool: Option<&Pool>, claim: &Claim| {
            let profile = pool.map_or(claim.profile.to_string(), |pool| {
                pool.profile(claim.profile)
            });
            format!(
                "{profile} in memory slices {} of GPU {gpu}",
                slices_text(claim.window)
            )
        };
        let mut notes = Vec::new();
        for claim in after {
            let was = old(claim.id).map(|claim| matches!(claim.phase, Phase::Ready { .. }));
            if let (Phase::Ready { uuid, .. }, Some(false) | None) = (&claim.phase, was) {
                let what = what(self.mig.pool.as_ref(), claim);
                notes.push((claim.job, format!("job {} has {what}: {uuid}", claim.job)));
            }
        }
        for claim in before {
            if after.iter().all(|now| now.id != claim.id) {
                let what = what(self.mig.pool.as_ref(), claim);
                notes.push((claim.job, format!("job {} has no longer {what}", claim.job)));
            }
        }
        for (job, text) in notes {
            self.mig_note(Some(job), text);
        }
    }

    /// A line of the audit log. The GPU stands in the text: its number here is NVML's, not Slurm's.
    fn mig_note(&mut self, job: Option<u32>, text: String) {
        let uid = self.user_of(job);
        if !self.is_heard(uid) {
            return;
        }
        let audit = Audit {
            at_ms: (self.ports.wall)(),
            job,
            rule: Some("mig".into()),
            text,
            ..Audit::default()
        };
        let mut lines = Vec::new();
        self.log(&audit, &mut lines);
        self.ports.disk.audit(lines);
    }
}
