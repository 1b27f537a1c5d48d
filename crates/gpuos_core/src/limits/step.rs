//! The step function: an event changes what is known, and then every GPU goes one step towards what is wanted
//! of it.
//!
//! A GPU with nothing set is read, then what was before and what is to be stands on the disk, then it is set.
//! Whatever ends in between, the disk knows what has to be undone. Nothing is set over what another job had
//! set: that is undone first.
use gpuos_model::gpu_index::GresGpu;

use super::requests::PowerCap;
use super::state::{
    AppliedLimits, Board, Clocks, Effect, Event, GpuSettings, Limits, Now, Phase, Setting, Wanted,
};
use crate::health::Audit;
use crate::job::JobId;

/// Wait after an attempt at undoing that failed, in ms: at first, and at most.
const AGAIN_MS: [u64; 2] = [5_000, 60_000];
/// So many polls in a row have to show another limit: the first may be older than what was set.
const STRANGE: u8 = 2;

/// What follows from an event. `now_ms`: a clock of the daemon's own that does not jump; `wall_ms`: for the
/// audit log. Effects are to be done in their order.
pub fn step(limits: &mut Limits, event: Event, now_ms: u64, wall_ms: u64) -> Vec<Effect> {
    let mut ctx = Ctx {
        wall_ms,
        now_ms,
        effects: Vec::new(),
    };
    let ctx = &mut ctx;
    match event {
        Event::Started { rebooted } => {
            limits.now.clear();
            limits.told = false;
            if rebooted {
                limits.applied.clear();
            }
        }
        Event::Jobs(holders) => {
            limits.holders = holders;
            limits.told = true;
        }
        Event::Read { gpu, result: told } => read(limits, ctx, gpu, told),
        Event::Saved {
            revision,
            result: told,
        } => saved(limits, ctx, revision, &told),
        Event::Done { gpu, result: told } => done(limits, ctx, gpu, told),
        Event::Sample { gpu, limit_mw } => sample(limits, ctx, gpu, limit_mw),
        Event::Reset { gpu } => {
            // Until it is set or undone again nobody knows; what is under way ends first.
            let now = limits.now.entry(gpu).or_default();
            if matches!(now.phase, Phase::InForce | Phase::Again(_)) {
                now.phase = Phase::Open;
            }
        }
        Event::Tick => {}
    }
    if !limits.told {
        return std::mem::take(&mut ctx.effects);
    }
    let mut gpus: Vec<GresGpu> = limits.applied.keys().copied().collect();
    gpus.extend(limits.holders.iter().flat_map(|holder| &holder.gpus));
    gpus.sort_unstable();
    gpus.dedup();
    limits
        .now
        .retain(|gpu, now| gpus.contains(gpu) || now.phase.is_busy());
    for gpu in gpus {
        advance(limits, ctx, gpu);
    }
    std::mem::take(&mut ctx.effects)
}

struct Ctx {
    wall_ms: u64,
    now_ms: u64,
    effects: Vec<Effect>,
}

impl Ctx {
    fn audit(&mut self, gpu: GresGpu, job: &JobId, text: String) {
        self.effects.push(Effect::Audit(Audit {
            at_ms: self.wall_ms,
            gpu: Some(gpu.into()),
            job: Some(job.clone()),
            text,
            ..Audit::default()
        }));
    }

    /// Has the state written; the number of it.
    fn save(&mut self, limits: &mut Limits) -> u64 {
        limits.revision += 1;
        let revision = limits.revision;
        self.effects.push(Effect::Save { revision });
        revision
    }
}

impl Phase {
    fn is_busy(&self) -> bool {
        match self {
            Phase::Reading(_) | Phase::Saving(_) | Phase::Setting | Phase::Undoing => true,
            Phase::Open | Phase::InForce | Phase::Again(_) => false,
        }
    }
}

/// What a wish is told as that cannot be met.
fn fail(limits: &mut Limits, ctx: &mut Ctx, gpu: GresGpu, wish: GpuSettings, why: String) {
    let text = format!("job {}: power and clocks are not set: {why}", wish.job);
    ctx.audit(gpu, &wish.job, text);
    let now = limits.now.entry(gpu).or_default();
    now.failed = Some((wish, format!("power and clocks are not set: {why}")));
}

/// [`Event::Read`]: decides what is set, and has it written down.
fn read(limits: &mut Limits, ctx: &mut Ctx, gpu: GresGpu, told: Result<Board, String>) {
    let now = limits.now.entry(gpu).or_default();
    if !matches!(now.phase, Phase::Reading(_)) {
        return;
    }
    let Phase::Reading(wish) = std::mem::take(&mut now.phase) else {
        return;
    };
    if limits.wanted(gpu) != Wanted::Set(wish.clone()) {
        return;
    }
    match told.and_then(|board| plan(wish.clone(), board)) {
        Err(why) => fail(limits, ctx, gpu, wish, why),
        Ok(kept) => {
            limits.applied.insert(gpu, kept);
            let revision = ctx.save(limits);
            let now = limits.now.entry(gpu).or_default();
            now.phase = Phase::Saving(revision);
        }
    }
}

/// What is to be set for a wish on a board, and what the job is to know of it.
fn plan(wish: GpuSettings, board: Board) -> Result<AppliedLimits, String> {
    if board.divided {
        return Err("it is divided into MIG instances".into());
    }
    let mut notes = Vec::new();
    let power_mw = match wish.power {
        None => None,
        Some(cap) => {
            let limits = board.limits_mw.zip(board.limit_mw);
            let (limits, before) = limits.ok_or("this GPU has no power limit that can be set")?;
            let (set, moved) = cap.on(limits);
            if moved {
                let [least, default, most] = limits.map(|milliwatts| milliwatts / 1000);
                let asked = match cap {
                    PowerCap::Watts(_) => String::new(),
                    PowerCap::Percent(percent) => {
                        format!(" ({} W)", u64::from(default) * u64::from(percent) / 100)
                    }
                };
                notes.push(format!(
                    "{} W is set for --gpuos-power={cap}{asked}: the board takes {least} W to {most} W",
                    set / 1000
                ));
            }
            Some([before, set])
        }
    };
    let clocks = wish.clocks.map(|range| match board.clocks_mhz {
        Some([least, most]) => {
            let set = range.on([least, most]);
            if set != range {
                notes.push(format!(
                    "{set} MHz is set for --gpuos-clocks={range}: the board takes {least} MHz to {most} MHz"
                ));
            }
            set
        }
        None => range,
    });
    Ok(AppliedLimits {
        job: wish.job.clone(),
        power_mw,
        clocks,
        wish,
        overruled: false,
        notes,
    })
}

/// [`Event::Saved`]: what stands on the disk may be done.
fn saved(limits: &mut Limits, ctx: &mut Ctx, revision: u64, told: &Result<(), String>) {
    let waits = |now: &Now| matches!(now.phase, Phase::Saving(of) if of <= revision);
    let gpus: Vec<GresGpu> = limits
        .now
        .iter()
        .filter(|(_, now)| waits(now))
        .map(|(gpu, _)| *gpu)
        .collect();
    for gpu in gpus {
        if let Some(now) = limits.now.get_mut(&gpu) {
            now.phase = Phase::Open;
        }
        if let Err(why) = told
            && let Some(kept) = limits.applied.remove(&gpu)
        {
            let why = format!("what was before could not be written down: {why}");
            fail(limits, ctx, gpu, kept.wish, why);
        }
    }
}

/// [`Event::Done`].
fn done(limits: &mut Limits, ctx: &mut Ctx, gpu: GresGpu, told: Result<(), String>) {
    let now = limits.now.entry(gpu).or_default();
    let phase = std::mem::take(&mut now.phase);
    let Some(kept) = limits.applied.get(&gpu).cloned() else {
        return;
    };
    match (phase, told) {
        (Phase::Setting, Ok(())) => {
            now.phase = Phase::InForce;
            now.strange = 0;
            let before = kept.power_mw.map_or_else(String::new, |[before, _]| {
                format!(" (before: {} W)", before / 1000)
            });
            let text = format!("job {} has {}{before}", kept.job, kept.text());
            ctx.audit(gpu, &kept.job, text);
        }
        // A part of it may have been set: with the wish failed it is undone.
        (Phase::Setting, Err(why)) => fail(limits, ctx, gpu, kept.wish, why),
        (Phase::Undoing, Ok(())) => {
            now.tries = 0;
            limits.applied.remove(&gpu);
            let power = kept
                .power_mw
                .map(|[before, _]| format!("{} W", before / 1000));
            let clocks = kept.clocks.map(|_| "unlocked clocks".to_string());
            let what: Vec<String> = [power, clocks].into_iter().flatten().collect();
            let text = format!(
                "job {} is done with it: {} again",
                kept.job,
                what.join(", ")
            );
            ctx.audit(gpu, &kept.job, text);
            ctx.save(limits);
        }
        (Phase::Undoing, Err(why)) => {
            if now.tries == 0 {
                let text = format!(
                    "what job {} had set ({}) could not be undone, and is tried again: {why}",
                    kept.job,
                    kept.text()
                );
                ctx.audit(gpu, &kept.job, text);
            }
            let wait = AGAIN_MS[0]
                .saturating_mul(1 << now.tries.min(10))
                .min(AGAIN_MS[1]);
            now.tries = now.tries.saturating_add(1);
            now.phase = Phase::Again(ctx.now_ms.saturating_add(wait));
        }
        // Nothing of the kind was under way.
        (other, _) => now.phase = other,
    }
}

/// [`Event::Sample`]: whether somebody else has set another limit.
fn sample(limits: &mut Limits, ctx: &mut Ctx, gpu: GresGpu, limit_mw: u32) {
    let (Some(kept), Some(now)) = (limits.applied.get_mut(&gpu), limits.now.get_mut(&gpu)) else {
        return;
    };
    let Some([before, set]) = kept.power_mw.filter(|_| now.phase == Phase::InForce) else {
        return;
    };
    if limit_mw == set {
        now.strange = 0;
    } else if !kept.overruled {
        now.strange += 1;
        if now.strange >= STRANGE {
            now.strange = 0;
            kept.overruled = true;
            let job = &kept.job;
            let text = format!(
                "somebody has set a power limit of {} W over the {} W of job {job}: it stays until the job's \
                 end, and then {} W comes back, as before the job",
                limit_mw / 1000,
                set / 1000,
                before / 1000
            );
            ctx.audit(gpu, job, text);
            ctx.save(limits);
        }
    }
}

/// One step of one GPU towards what is wanted of it.
fn advance(limits: &mut Limits, ctx: &mut Ctx, gpu: GresGpu) {
    let wanted = limits.wanted(gpu);
    let now = limits.now.entry(gpu).or_default();
    if now.phase.is_busy() {
        return;
    }
    let wish = match wanted {
        Wanted::Set(wish) => Some(wish),
        Wanted::Nothing | Wanted::Shared => None,
    };
    let failed = now.failed.as_ref().map(|(of, _)| of.clone());
    // Once the job has gone, or asks for something else, it may be tried again.
    if failed.is_some() && failed != wish {
        now.failed = None;
    }
    let wish = wish.filter(|wish| failed.as_ref() != Some(wish));
    match (limits.applied.get(&gpu), wish) {
        (None, None) => now.phase = Phase::Open,
        (None, Some(wish)) => {
            now.phase = Phase::Reading(wish);
            ctx.effects.push(Effect::Read { gpu });
        }
        (Some(kept), Some(wish)) if kept.wish == wish => match now.phase {
            Phase::InForce => {}
            _ if kept.overruled => now.phase = Phase::InForce,
            _ => {
                now.phase = Phase::Setting;
                let set = Setting {
                    power_mw: kept.power_mw.map(|[_, set]| set),
                    clocks: kept.clocks.map_or(Clocks::Leave, Clocks::Lock),
                };
                ctx.effects.push(Effect::Set { gpu, set });
            }
        },
        (Some(kept), _) => {
            if matches!(now.phase, Phase::Again(at) if ctx.now_ms < at) {
                return;
            }
            now.phase = Phase::Undoing;
            let set = Setting {
                power_mw: kept.power_mw.map(|[before, _]| before),
                clocks: kept.clocks.map_or(Clocks::Leave, |_| Clocks::Unlock),
            };
            ctx.effects.push(Effect::Set { gpu, set });
        }
    }
}
