//! What daemons of the host prepare for a program that is about to be started, as they do for a step of Slurm.

use std::collections::BTreeMap;

use gpuos_config::options::{JobOptions, parse_checkpoint};
use gpuos_core::limits::{Asked, MpsRequest, Share};
use gpuos_core::step::StepId;
use gpuos_core::wire::{
    CHECKPOINT_VARIABLE, CheckpointRequest, MIG_VARIABLES, MPS_VARIABLES, MigAsk, Reason, Reply,
    Request,
};

use super::allocation::Allocation;
use super::confine;
use super::event::{Edit, Event, Verdict, env};
use super::mom;
use super::options::{said, wish};
use super::resources::{CHECKPOINT, CLOCKS, MIG, MPS, POWER, of_users};
use super::shares;
use super::talk::{Daemon, Said, Talk, replies};
use super::tiers::Granted;
use super::vnodes::short;

/// How long a start waits for gpuos_mover, in milliseconds. With gpuosd and the group of the program that is no more than half the hook's alarm.
const MOVER: u64 = 6_000;
/// How long it waits for gpuosd: until slices are made, of which gpuosd says something after 40 s at most, and until GPUs are set.
const SLICES: u64 = 46_000;
const LIMITS: u64 = 3_000;
/// How long it waits for GPUs that gpuosd chooses: what had them before may have ended just now.
const CHOICE: u64 = 10_000;
/// How long another program of a job than its first waits: mom does nothing else meanwhile.
const LATER: u64 = 3_000;
/// How long slices are waited for where no gpuosd listens: it finds its own work in its journal.
const ABSENCE: u64 = 10_000;
/// How long a first program on another host than that of the script waits for slices: what ended there just now may still have them, and mom
/// does nothing else meanwhile.
const ELSEWHERE: u64 = 25_000;

/// Where CUDA looks for its GPUs.
const VISIBLE: &str = MIG_VARIABLES[0];
/// What gpuosd may set for a program.
const GPU_VARIABLES: [&str; 9] = {
    let [a, b, c, d, e] = MIG_VARIABLES;
    let [f, g, h, i] = MPS_VARIABLES;
    [a, b, c, d, e, f, g, h, i]
};

const UNTOLD: &str = "the program has no checkpoints: none are kept here, this host does not know its user, or the job has too many hosts";
const NO_GPUOSD: &str = "gpuosd is not told of jobs on this host; tell your administrator";

/// What they are told.
pub(super) fn talks(event: &Event) -> Vec<Talk> {
    [gpuosd(event), confine::talk(event), mover(event)]
        .into_iter()
        .flatten()
        .collect()
}

/// gpuosd is to know of the job from now on, chooses its GPUs and does for it what it asks of them: a start waits for both.
fn gpuosd(event: &Event) -> Option<Talk> {
    let report = mom::of_launch(event, false)?;
    let step = step(event, &report);
    let chooses = Allocation::of(event, &event.job.exec_vnode).is_ok_and(|has| has.is_chosen());
    let choice = match (chooses, event.first) {
        (false, _) => 0,
        (true, true) => CHOICE,
        (true, false) => LATER,
    };
    let Some((step, (patience, absence))) = step else {
        let talk = Talk::new(Daemon::Gpuosd, &event.gpuosd, &[report])?;
        return Some(if chooses {
            talk.within(choice)
        } else {
            talk.tell()
        });
    };
    let talk = Talk::new(Daemon::Gpuosd, &event.gpuosd, &[report, step])?;
    Some(talk.within(patience.max(choice)).over(absence))
}

/// What a job asks of its GPUs, as a step that starts; how long it waits for that, and for a gpuosd that is away.
fn step(event: &Event, report: &Request) -> Option<(Request, (u64, u64))> {
    let Request::Mom { report } = report else {
        return None;
    };
    let job = report.jobs.first()?;
    let asked = asked(event);
    let slices = job.slices.as_ref();
    let memory = Granted::of(event).map(|granted| granted.told());
    if !asked.waits() && slices.is_none() && memory.is_none() {
        return None;
    }
    let step = Request::StepStart {
        id: StepId {
            job: job.job.clone(),
            step: StepId::BATCH,
        },
        uid: job.uid,
        // Those of the job, which gpuosd has chosen.
        gpus: Vec::new(),
        asked,
        // Which slices they are is known on the host alone.
        mig: slices.map(|slices| MigAsk {
            request: slices.request.clone(),
            slices: Vec::new(),
            tasks: 1,
        }),
        switchable: false,
        memory,
        reason: Reason::Devices,
    };
    let times = match slices {
        // What it has is made already.
        _ if !event.first => (LATER, 0),
        Some(_) if job.script_on != short(&event.host) => (ELSEWHERE, LATER),
        Some(_) => (SLICES, ABSENCE),
        None => (LIMITS, 0),
    };
    Some((step, times))
}

/// Power, clocks and MPS of a job. What got around the check of pbs_server is no wish.
fn asked(event: &Event) -> Asked {
    let mut options = JobOptions::default();
    for resource in of_users().filter(|one| [POWER, CLOCKS, MPS].contains(&one.name)) {
        if let Some(value) = said(&event.job.resources, resource.name) {
            let _ = options.set(resource.option, value);
        }
    }
    let (percent, joint) = match shares::wished(&event.job.resources) {
        // gpuosd looks whether it has a part of a GPU.
        Some(Share::Mps { percent }) => (Some(percent), true),
        _ => (options.mps, false),
    };
    Asked {
        power: options.power,
        clocks: options.clocks,
        mps: percent
            .zip(event.job.held.gid)
            .map(|(percent, gid)| MpsRequest {
                percent,
                gid,
                joint,
            }),
        ..Asked::default()
    }
}

/// gpuos_mover makes the folder by which the program makes checkpoints.
fn mover(event: &Event) -> Option<Talk> {
    let asked = wish(&event.job.resources, CHECKPOINT)?;
    let asked = parse_checkpoint(asked).ok()?.to_string();
    let report = mom::of_launch(event, true)?;
    let held = &event.job.held;
    let what = CheckpointRequest::Step {
        id: StepId {
            job: event.job.id.parse().ok()?,
            step: StepId::BATCH,
        },
        uid: held.uid?,
        gid: held.gid?,
        asked,
        start: None,
    };
    let step = Request::Checkpoint { what };
    let talk = Talk::new(Daemon::Mover, &event.mover, &[report, step])?;
    Some(talk.within(if event.first { MOVER } else { LATER }))
}

/// Whether a job asks for checkpoints.
fn has_checkpoints(event: &Event) -> bool {
    wish(&event.job.resources, CHECKPOINT).is_some()
}

/// What a program is started with, and told, after what the daemons said. One that has slices does not start without them.
pub(super) fn prepared<'a>(
    event: &Event,
    mut edits: Vec<Edit>,
    said: impl Iterator<Item = (&'a Talk, &'a Said)>,
) -> Verdict {
    // Where another one gives the GPUs nothing is told, either.
    let granted = Granted::of(event).filter(|_| mom::own(event).is_some());
    let of_tiers = granted.as_ref().map(|granted| granted.variables(event));
    let (of_tiers, note) = of_tiers.unwrap_or_default();
    edits.extend(of_tiers);
    let mut notes: Vec<String> = note.into_iter().collect();
    let mut without = has_slices(event).then(|| NO_GPUOSD.to_owned());
    let said: Vec<_> = said.collect();
    let asks = said.iter().any(|(talk, _)| talk.daemon == Daemon::Mover);
    if has_checkpoints(event) && !asks {
        notes.push(UNTOLD.to_owned());
    }
    for (talk, said) in said.into_iter().filter(|(talk, _)| talk.answers > 0) {
        let what = match talk.daemon {
            // Nothing is prepared there.
            Daemon::Groups => continue,
            Daemon::Gpuosd => read(said, "gpuosd", &GPU_VARIABLES),
            Daemon::Mover => read(said, "gpuos_mover", &[CHECKPOINT_VARIABLE]),
        };
        match (talk.daemon, what) {
            (daemon, Ok((more, variables))) => {
                notes.extend(more);
                // Without it gpuosd has answered another question.
                let named =
                    |edit: &Edit| matches!(edit, Edit::Env { name, .. } if *name == VISIBLE);
                if daemon == Daemon::Gpuosd && variables.iter().any(named) {
                    without = None;
                }
                edits.extend(variables);
            }
            (Daemon::Gpuosd, Err(why)) if without.is_some() => without = Some(why),
            (Daemon::Gpuosd, Err(why)) => {
                notes.extend(granted.as_ref().map(|granted| granted.without(&why)));
                if asked(event).waits() {
                    notes.push(format!(
                        "power and clocks of the GPUs are not set, and MPS is not started: {why}"
                    ));
                }
            }
            (Daemon::Groups, Err(_)) => {}
            (Daemon::Mover, Err(why)) => {
                notes.push(format!("the program has no checkpoints: {why}"));
            }
        }
    }
    if let Some(why) = without {
        let allocation = Allocation::of(event, &event.job.exec_vnode).unwrap_or_default();
        // The job of another program goes on.
        let again = event.first && allocation.is_of_script(event);
        let then = match again {
            true => "it is queued again",
            false => "this program of it is not started",
        };
        return Verdict {
            edits: again.then_some(Edit::Requeue).into_iter().collect(),
            notes,
            ..Verdict::reject(format!(
                "the slices of this job are not there, and {then}: {why}"
            ))
        };
    }
    Verdict {
        notes,
        ..Verdict::accept(edits)
    }
}

/// Whether a job was given slices of GPUs of this host.
fn has_slices(event: &Event) -> bool {
    let asked = wish(&event.job.resources, MIG).is_some();
    let allocation = Allocation::of(event, &event.job.exec_vnode);
    asked && allocation.is_ok_and(|has| has.has_slices())
}

/// Notes of a daemon, and those of its variables that a program is given.
fn read(
    said: &Said,
    daemon: &str,
    names: &[&'static str],
) -> Result<(Vec<String>, Vec<Edit>), String> {
    let said = said.as_ref().map_err(|why| match why.is_empty() {
        true => format!("{daemon} does not run on this host; tell your administrator"),
        false => format!("{daemon} on this host gave no answer: {why}"),
    })?;
    let replies = replies(said).map_err(|why| format!("{daemon}: {why}"))?;
    match replies.into_iter().next_back() {
        // Only the choice was asked for.
        Some(Reply::Mom { .. }) => Ok((Vec::new(), Vec::new())),
        Some(Reply::Prepared {
            failed: Some(why), ..
        }) => Err(why),
        Some(Reply::Prepared {
            notes, environment, ..
        }) => Ok((as_of_pbs(notes), variables(&environment, names))),
        // It knows of the job, and had nothing to do for it.
        Some(Reply::Done { .. }) => Ok((Vec::new(), Vec::new())),
        Some(Reply::Refused { message, .. }) => Err(message),
        _ => Err(format!("{daemon} on this host is of another release")),
    }
}

/// Notes with options as users of PBS write them.
fn as_of_pbs(notes: Vec<String>) -> Vec<String> {
    let written = |note: String| note.replace("--gpuos-", "-l gpuos_");
    notes.into_iter().map(written).collect()
}

fn variables(environment: &BTreeMap<String, String>, names: &[&'static str]) -> Vec<Edit> {
    let given = names.iter().filter_map(|name| {
        let value = environment.get(*name)?;
        let plain = value.bytes().all(|byte| byte.is_ascii_graphic());
        plain.then(|| env(name, value))
    });
    given.collect()
}
