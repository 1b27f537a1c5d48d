//! The GPUs on which instances are: what NVML shows of them, what [`gpuos_core::mig::carve`] is told, and their slice files.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpuos_core::health::Audit;
use gpuos_core::job::JobId;
use gpuos_core::mig::carve::{self, Carver, Effect as Said, Event};
use gpuos_core::mig::{Claim, Phase};
use gpuos_model::gpu_index::NvmlIndex;
use gpuos_model::mig::MigPlacement;

use crate::event_loop::effect::{Effect, Effects, Now, Quota, Then};
use crate::known::Instances;
use crate::mig::pool::{Grant, Piece, Pool, layout, slices_text};
use crate::mig::{Task, View};
use crate::slices::Layout;

/// What NVML shows is looked at so often.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Slice files of one GPU.
#[derive(Default)]
struct Files {
    /// As the thread was last told to write them, and as they are.
    sent: Option<Layout>,
    written: Option<Layout>,
    trouble: Option<String>,
}

/// Looks at what NVML shows.
#[derive(Default)]
struct Probes {
    /// Those that are under way, since when.
    under_way: BTreeMap<NvmlIndex, Instant>,
    /// When the last one began that has ended.
    seen: BTreeMap<NvmlIndex, Instant>,
    /// Those that are to be repeated.
    again: BTreeSet<NvmlIndex>,
    /// When all GPUs were looked at last.
    all: Option<Instant>,
}

/// The GPUs of the pool, by NVML's index.
#[derive(Default)]
pub struct Boards {
    carvers: BTreeMap<NvmlIndex, Carver>,
    views: BTreeMap<NvmlIndex, Result<Box<View>, String>>,
    files: BTreeMap<NvmlIndex, Files>,
    probes: Probes,
    /// What was warned of and still holds.
    warned: BTreeSet<(NvmlIndex, String)>,
}

impl Boards {
    /// With the claims that were saved.
    pub fn restore(claims: BTreeMap<NvmlIndex, Vec<Claim>>) -> Boards {
        let carvers = claims.into_iter();
        Boards {
            carvers: carvers
                .map(|(gpu, claims)| (gpu, Carver::restore(claims)))
                .collect(),
            ..Boards::default()
        }
    }

    /// Claims that are to be saved.
    pub fn journal(&self) -> BTreeMap<NvmlIndex, Vec<Claim>> {
        let claims = self.carvers.iter();
        let claims = claims.map(|(gpu, carver)| (*gpu, carver.claims()));
        claims.filter(|(_, claims)| !claims.is_empty()).collect()
    }

    /// There is such a GPU.
    pub fn know(&mut self, gpu: NvmlIndex) {
        self.carvers.entry(gpu).or_default();
    }

    /// All of them.
    pub fn all(&self) -> Vec<NvmlIndex> {
        self.carvers.keys().copied().collect()
    }

    /// What jobs are to have on a GPU.
    pub fn claims(&self, gpu: NvmlIndex) -> Vec<Claim> {
        self.carvers
            .get(&gpu)
            .map(Carver::claims)
            .unwrap_or_default()
    }

    /// Whether the driver is at work on a GPU.
    pub fn calling(&self, gpu: NvmlIndex) -> bool {
        self.carvers.get(&gpu).is_some_and(Carver::calling)
    }

    /// What NVML has shown of a GPU last, or why it shows nothing.
    pub fn view(&self, gpu: NvmlIndex) -> Option<Result<&View, &String>> {
        self.views.get(&gpu).map(|view| view.as_deref())
    }

    /// What is wrong with the first GPU of which something is.
    pub fn unfit(&self) -> Option<String> {
        self.views.iter().find_map(|(gpu, view)| match view {
            Ok(view) => view.unfit.clone(),
            Err(why) => Some(format!("GPU {gpu}: {why}")),
        })
    }

    /// Why slice files cannot be written, if so.
    pub fn files_trouble(&self) -> Option<String> {
        let mut files = self.files.values();
        files.find_map(|files| files.trouble.clone())
    }

    /// Whether a GPU is out of MIG mode by what was seen last.
    pub fn is_whole(&self, gpu: NvmlIndex) -> Option<bool> {
        Some(self.view(gpu)?.ok()?.whole)
    }

    /// Whether MIG mode is on by what NVML has shown since then.
    pub fn mode_since(&self, gpu: NvmlIndex, since: Instant) -> Option<bool> {
        let seen = self.probes.seen.get(&gpu).is_some_and(|at| *at >= since);
        let whole = self.is_whole(gpu)?;
        seen.then_some(!whole)
    }

    /// The driver has changed the mode.
    pub fn turned(&mut self, gpu: NvmlIndex, on: bool) {
        if let Some(Ok(view)) = self.views.get_mut(&gpu) {
            view.whole = !on;
        }
    }

    /// Whether all of a job's instances can be used, and its slice files say so.
    pub fn is_ready(&self, job: &JobId, grant: &Grant) -> bool {
        grant
            .pieces
            .iter()
            .all(|piece| self.has(job, piece).is_some())
    }

    fn has(&self, job: &JobId, piece: &Piece) -> Option<()> {
        let carver = self.carvers.get(&piece.gpu)?;
        carver.is_reconciled().then_some(())?;
        let claims = carver.claims();
        let at = claims.iter().find(|claim| {
            claim.job == *job
                && (claim.placement, claim.profile) == (piece.placement, piece.profile)
                && matches!(claim.phase, Phase::Ready { .. })
        })?;
        let files = self.files.get(&piece.gpu)?.written.as_ref()?;
        let Phase::Ready { gi, ci, .. } = at.phase else {
            return None;
        };
        let start = usize::from(piece.placement.start);
        let own = files.get(start..start + usize::from(piece.placement.size))?;
        own.iter()
            .all(|slice| *slice == Some((gi, ci)))
            .then_some(())
    }

    /// Whether what a job is to have is being made, or there.
    pub fn is_claimed(&self, job: &JobId, piece: &Piece) -> bool {
        self.claims(piece.gpu).iter().any(|claim| {
            claim.job == *job
                && (claim.placement, claim.profile) == (piece.placement, piece.profile)
                && claim.phase != Phase::Going
        })
    }

    /// Where instances are that no job is to have, by what NVML has shown last.
    pub fn nobodys(&self, gpu: NvmlIndex) -> Vec<(NvmlIndex, MigPlacement)> {
        let claims = self.claims(gpu);
        let Some(Ok(view)) = self.view(gpu) else {
            return Vec::new();
        };
        let own = |place: MigPlacement| claims.iter().any(|claim| claim.placement == place);
        let shown = view.shown.iter().map(|instance| instance.placement);
        shown
            .filter(|place| !own(*place))
            .map(|place| (gpu, place))
            .collect()
    }

    /// The instances of jobs that can be used.
    pub fn instances(&self) -> Instances {
        let mut all = Instances::new();
        for gpu in self.all() {
            for claim in self.claims(gpu) {
                if let Phase::Ready { gi, ci, .. } = claim.phase {
                    all.entry(claim.job).or_default().insert((gpu, gi, ci));
                }
            }
        }
        all
    }

    /// NVIDIA's id of an instance.
    pub fn uuid(&self, gpu: NvmlIndex, of: impl Fn(&Claim) -> bool) -> Option<String> {
        let claims = self.claims(gpu);
        claims
            .into_iter()
            .find(of)
            .and_then(|claim| match claim.phase {
                Phase::Ready { uuid, .. } => Some(uuid),
                _ => None,
            })
    }

    /// Tells the step function of a GPU. Returns the jobs that cannot have their instances, and why.
    pub fn step(
        &mut self,
        (gpu, event): (NvmlIndex, Event),
        pool: Option<&Pool>,
        now: Now,
        fx: &mut Effects,
    ) -> Vec<(JobId, String)> {
        let Some(carver) = self.carvers.get_mut(&gpu) else {
            return Vec::new();
        };
        let before = carver.claims();
        let said = carve::step(carver, event, now.running_ms);
        let after = carver.claims();
        audit(gpu, (&before, &after), pool, now, fx);
        // Nobody may open an instance that goes: before it is destroyed.
        self.write_files(gpu, pool, fx);
        let mut failed = Vec::new();
        for said in said {
            match said {
                Said::Save { revision, .. } => fx.push(Effect::Save(Then::Mig(gpu, revision))),
                call @ (Said::MakeGpu { .. }
                | Said::MakeCompute { .. }
                | Said::DestroyCompute { .. }
                | Said::DestroyGpu { .. }) => fx.push(Effect::Mig(gpu, Task::Call(call))),
                Said::Ready { .. } => {}
                Said::Failed { job, why } => failed.push((job, why)),
                Said::Signal { pids, kill } => {
                    fx.push(Effect::Mig(gpu, Task::Signal { pids, kill }));
                }
                Said::Warn(text) => self.warn(gpu, text, now, fx),
            }
        }
        failed
    }

    /// The journal of a GPU is written again.
    pub fn save(&self, gpu: NvmlIndex, fx: &mut Effects) {
        if let Some(carver) = self.carvers.get(&gpu) {
            fx.push(Effect::Save(Then::Mig(gpu, carver.revision())));
        }
    }

    /// Has the slice files of a GPU written, where they are not as they should be.
    pub fn write_files(&mut self, gpu: NvmlIndex, pool: Option<&Pool>, fx: &mut Effects) {
        let (Some(pool), Some(carver)) = (pool, self.carvers.get(&gpu)) else {
            return;
        };
        if pool.first(gpu).is_none() {
            return;
        }
        let wanted = layout(&carver.claims(), pool.geometry.slices());
        let files = self.files.entry(gpu).or_default();
        if files.sent.as_ref() != Some(&wanted) {
            files.sent = Some(wanted.clone());
            fx.push(Effect::Mig(gpu, Task::Files(wanted)));
        }
    }

    /// They are written, or not.
    pub fn files_written(&mut self, gpu: NvmlIndex, layout: Layout, written: Result<(), String>) {
        let files = self.files.entry(gpu).or_default();
        files.trouble = written.as_ref().err().cloned();
        match written {
            Ok(()) => files.written = Some(layout),
            // Written again with the next tick.
            Err(_) if files.sent.as_ref() == Some(&layout) => files.sent = None,
            Err(_) => {}
        }
    }

    /// Has NVML asked what it shows of a GPU.
    pub fn probe(&mut self, gpu: NvmlIndex, now: Now, fx: &mut Effects) {
        if self.probes.under_way.contains_key(&gpu) {
            self.probes.again.insert(gpu);
            return;
        }
        self.probes.under_way.insert(gpu, now.at);
        fx.push(Effect::Mig(gpu, Task::Probe));
    }

    /// Whether that is under way.
    pub fn is_probing(&self, gpu: NvmlIndex) -> bool {
        self.probes.under_way.contains_key(&gpu)
    }

    /// Looks once more where that was asked for meanwhile.
    pub fn probe_if_requested(&mut self, gpu: NvmlIndex, now: Now, fx: &mut Effects) {
        if self.probes.again.remove(&gpu) {
            self.probe(gpu, now, fx);
        }
    }

    /// Looks at all of them.
    pub fn probe_all(&mut self, now: Now, fx: &mut Effects) {
        for gpu in self.all() {
            self.probe(gpu, now, fx);
        }
        self.probes.all = Some(now.at);
    }

    /// The same if it is time for it.
    pub fn tick(&mut self, now: Now, fx: &mut Effects) {
        let late = |at| now.at.duration_since(at) >= LOOK_EVERY;
        if self.probes.all.is_none_or(late) {
            self.probe_all(now, fx);
        }
    }

    /// NVML has shown a GPU, or not. Returns whether it has. `switchable`: it may be whole.
    pub fn shown(
        &mut self,
        gpu: NvmlIndex,
        mut view: Result<Box<View>, String>,
        switchable: bool,
        (now, fx): (Now, &mut Effects),
    ) -> bool {
        if let Some(began) = self.probes.under_way.remove(&gpu) {
            self.probes.seen.insert(gpu, began);
        }
        if let (Ok(view), true) = (&mut view, switchable) {
            // Then it is as it is to be.
            view.unfit = view.unfit.take().filter(|_| !view.whole);
        }
        self.probe_if_requested(gpu, now, fx);
        if let Ok(view) = &view {
            // What is over may be warned of again.
            self.warned.retain(|(of, text)| {
                let stays = |gi| text.starts_with(&format!("GPU {gpu}: GPU instance {gi} "));
                *of != gpu || view.shown.iter().any(|instance| stays(instance.gi))
            });
        }
        let shown = view.is_ok();
        self.views.insert(gpu, view);
        shown
    }

    /// A look that came while the driver was at work is repeated.
    pub fn repeat_if_calling(&mut self, gpu: NvmlIndex) {
        if self.calling(gpu) {
            self.probes.again.insert(gpu);
        }
    }

    /// The processes on instances of nobody that are where a job's are to be: `; used by …`.
    pub fn users(&self, gpu: NvmlIndex, grant: Option<&Grant>) -> String {
        let (Some(Ok(view)), Some(grant)) = (self.view(gpu), grant) else {
            return String::new();
        };
        let pieces = grant.pieces.iter().filter(|piece| piece.gpu == gpu);
        let placements: Vec<_> = pieces.map(|piece| piece.placement).collect();
        let there = view.shown.iter().filter(|instance| {
            placements
                .iter()
                .any(|placement| placement.overlaps(instance.placement))
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

    /// Warns of what holds, once.
    fn warn(&mut self, gpu: NvmlIndex, text: String, now: Now, fx: &mut Effects) {
        let text = format!("GPU {gpu}: {text}");
        if self.warned.insert((gpu, text.clone())) {
            tracing::warn!(gpu = u8::from(gpu), "{text}");
            note(None, text, now, fx);
        }
    }
}

/// Writes down which instances have come and gone.
fn audit(
    gpu: NvmlIndex,
    (before, after): (&[Claim], &[Claim]),
    pool: Option<&Pool>,
    now: Now,
    fx: &mut Effects,
) {
    let old = |id: u64| before.iter().find(|claim| claim.id == id);
    let what = |claim: &Claim| {
        let profile = pool.map_or(claim.profile.to_string(), |pool| {
            pool.profile(claim.profile)
        });
        format!(
            "{profile} in memory slices {} of GPU {gpu}",
            slices_text(claim.placement)
        )
    };
    for claim in after {
        let was = old(claim.id).map(|claim| matches!(claim.phase, Phase::Ready { .. }));
        if let (Phase::Ready { uuid, .. }, Some(false) | None) = (&claim.phase, was) {
            let text = format!("job {} has {}: {uuid}", claim.job, what(claim));
            note(Some(claim.job.clone()), text, now, fx);
        }
    }
    for claim in before {
        if after.iter().all(|now| now.id != claim.id) {
            let text = format!("job {} has no longer {}", claim.job, what(claim));
            note(Some(claim.job.clone()), text, now, fx);
        }
    }
}

/// A line of the audit log. The GPU stands in the text: its number here is NVML's, not Slurm's.
pub fn note(job: Option<JobId>, text: String, now: Now, fx: &mut Effects) {
    let audit = Audit {
        at_ms: now.wall_ms,
        job,
        rule: Some("mig".into()),
        text,
        ..Audit::default()
    };
    fx.push(Effect::Log(audit, Quota::Job));
}
