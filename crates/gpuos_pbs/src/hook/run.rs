//! A job that is about to be started: one that requires a level is not started while PBS would spread it.
//!
//! So that it does not starve, it is put off for so long and so often at most; then, and where a planner looks for a place, it stays
//! in its queue, and the sentence says why it waits and what to do.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_config::options::parse_mig;
use gpuos_model::hostlist::{compress, expand};
use gpuos_model::mig::Geometry;

use super::event::{Edit, Event, Left, Resources, Value, Verdict};
use super::memory;
use super::options::{self, Site, named, said, wish};
use super::place::{Arrangement, Place};
use super::refused;
use super::resources::{CHECKPOINT, HOSTS, MIG, MIG_MEMORY, NGPUS, SHARE, SHARE_PARTS, VETOES};
use super::select::Select;
use super::shares;
use super::slices;
use super::submit::shared_resource;
use super::vnodes::{self, Given, host_of, parse_exec_vnode, short};

/// Seconds until a job is tried again whose start its host has refused, by how often: what the host shows has come to pbs_server by then, and pbs_sched goes
/// by that. What fails for another reason is tried ever more seldom.
const SECONDS: [u64; 8] = [10, 10, 60, 120, 300, 900, 1_800, 3_600];

/// Minutes until a job is tried again that is put off, by how often it was before; some two hours in all. Who was put off so often
/// would lose each domain that becomes free in such an hour to jobs that wait in the queue, so from then on it waits there.
const MINUTES: [u64; 7] = [1, 2, 4, 8, 16, 32, 60];

/// `Exit_status` of a job that waits because a hook of its host refused its start.
const REFUSED_START: i64 = -16;

/// Starts a job, or does not. One with checkpoints keeps the names of its hosts: its next run looks for them there.
pub(super) fn started(event: &Event) -> Verdict {
    let misgiven = shares::misgiven(event).or_else(|| memory::misgiven(event));
    let misgiven = misgiven.or_else(|| uncounted_slices(event));
    let over = overcommitted(event).map(|why| Verdict {
        must: true,
        ..Verdict::reject(why)
    });
    let refused = over.or_else(|| misgiven.map(Verdict::reject));
    let mut verdict = match refused.or_else(|| refused_by_host(event)) {
        Some(refused) => refused,
        None => placed(event),
    };
    if verdict.refused.is_none() {
        verdict.edits.extend(hosts(event));
    }
    verdict
}

/// Why a job with slices is not started: they were not counted.
fn uncounted_slices(event: &Event) -> Option<String> {
    let job = &event.job;
    let asked = wish(&job.resources, MIG)?;
    // What cannot be read is PBS's own text: the host refuses the job if it has to.
    let given = parse_exec_vnode(&job.exec_vnode).ok()?;
    let counted = slices::all_counted(&given);
    (!counted).then(|| refused::not_counted(asked, named(MIG)).to_string())
}

/// Why a start has more GPUs than a vnode has left: pbs_server counts nothing when somebody but pbs_sched runs a job, nor what two have started in one
/// moment. What the vnodes have is told where that can be.
fn overcommitted(event: &Event) -> Option<String> {
    let given = parse_exec_vnode(&event.job.exec_vnode).ok()?;
    let mut wanted: BTreeMap<&str, u64> = BTreeMap::new();
    for one in given.iter().flatten().filter(|one| one.count(NGPUS) > 0) {
        *wanted.entry(&one.vnode).or_default() += one.count(NGPUS);
    }
    wanted.into_iter().find_map(|(vnode, gpus)| {
        let Left {
            available,
            assigned,
        } = event.left.get(vnode)?;
        let free = available.saturating_sub(*assigned);
        let text = &event.job.exec_vnode;
        (gpus > free).then(|| refused::overcommitted(text, vnode, gpus, free).to_string())
    })
}

/// A job whose host has just refused its start waits for a moment. Nothing of a subjob is changed.
fn refused_by_host(event: &Event) -> Option<Verdict> {
    let job = &event.job;
    let runs = job.held.run;
    let seen = said(&job.resources, VETOES).and_then(|text| text.parse::<u64>().ok());
    let was_refused = job.exit == Some(REFUSED_START) && seen.unwrap_or(0) < runs;
    let given = parse_exec_vnode(&job.exec_vnode).ok()?;
    let of_gpus = |one: &Given| {
        [NGPUS, MIG_MEMORY, SHARE_PARTS]
            .iter()
            .any(|name| one.count(name) > 0)
    };
    if !was_refused || is_subjob(&job.id) || !given.iter().flatten().any(of_gpus) {
        return None;
    }
    let last = SECONDS.len() - 1;
    let nth = usize::try_from(runs.saturating_sub(1)).unwrap_or(last);
    let seconds = SECONDS[nth.min(last)];
    let mut edits = Vec::new();
    if let Some(select) = in_one_piece(&job.resources, &event.boards).map(|it| it.to_string())
        && said(&job.resources, "select") != Some(&select)
    {
        edits.push(Edit::Resource {
            name: "select".into(),
            value: Value::Text(select),
        });
    }
    edits.extend([
        Edit::Resource {
            name: VETOES.into(),
            value: Value::Number(runs),
        },
        Edit::StartAfter {
            value: event.now.saturating_add(seconds),
        },
    ]);
    let whole: u64 = given.iter().flatten().map(|one| one.count(NGPUS)).sum();
    let (name, asked) = [MIG, SHARE]
        .into_iter()
        .find_map(|name| Some((name, wish(&job.resources, name)?.to_owned())))
        .unwrap_or((NGPUS, whole.to_string()));
    let why = refused::put_off(asked, named(name), runs, seconds);
    Some(Verdict {
        edits,
        ..Verdict::reject(why.to_string())
    })
}

/// The chunks of a job with slices or a share whose start was refused, as they are to be from now on: what it needs of one GPU is compared with what hosts
/// show, so that pbs_sched takes one that has it in one piece, and tries no other until something has ended there. At first it is not asked for: pbs_sched
/// does not foresee how it changes, and would neither keep a place for the job nor preempt for it.
pub(crate) fn in_one_piece(job: &Resources, boards: &BTreeMap<String, Geometry>) -> Option<Select> {
    let select = Select::parse(said(job, "select")?).ok()?;
    match (wish(job, MIG), wish(job, SHARE)) {
        (Some(asked), None) => slices::with_fits(&parse_mig(asked).ok()?, &select, boards),
        (None, Some(_)) => shares::with_fits(&select),
        _ => None,
    }
}

fn hosts(event: &Event) -> Option<Edit> {
    let job = &event.job;
    wish(&job.resources, CHECKPOINT)?;
    if is_subjob(&job.id) {
        return None;
    }
    let known = said(&job.resources, HOSTS).unwrap_or_default();
    let before = expand(known).unwrap_or_default();
    let chunks = parse_exec_vnode(&job.exec_vnode).ok()?;
    let now = vnodes::hosts(chunks.iter().flatten());
    let all: BTreeSet<String> = before.into_iter().chain(now).collect();
    let value = compress(all.iter().map(String::as_str));
    (value != known).then(|| Edit::Resource {
        name: HOSTS.into(),
        value: Value::Text(value),
    })
}

/// Whether the vnodes of a start will do: `place=group=` holds for pbs_sched, which may spread a job over sets of vnodes that could never
/// hold it, and for no operator. Who wrote `:required` waits instead.
fn placed(event: &Event) -> Verdict {
    let job = &event.job.resources;
    // What was taken when it was submitted counts, whatever the site has now.
    let site = Site {
        checkpoints: true,
        ..Site::of(event)
    };
    let Some(wish) = options::read(job, site)
        .ok()
        .and_then(|options| options.topology)
    else {
        return Verdict::accept(Vec::new());
    };
    let shared = shared_resource(&wish).ok().flatten();
    let Some(shared) = shared.filter(|_| wish.required) else {
        return Verdict::accept(Vec::new());
    };
    // What cannot be read is PBS's own text, and none of the user's fault: the job is let go.
    let given = parse_exec_vnode(&event.job.exec_vnode).unwrap_or_default();
    // It is the GPUs that are to be close; CPUs may come of the host's own vnode.
    let gpus = given
        .iter()
        .flatten()
        .filter(|given| given.count(NGPUS) > 0);
    let on: BTreeSet<String> = gpus
        .clone()
        .map(|given| short(host_of(&given.vnode)))
        .collect();
    if wish.level == "nvlink" && event.several_sets && on.len() == 1 {
        // Which of a host's sets it is gpuosd there chooses.
        return Verdict::accept(Vec::new());
    }
    let mut domains = gpus.map(|given| {
        let vnode = given.vnode.as_str();
        (vnode, domain(vnode, shared, event.vnodes.get(vnode)))
    });
    let Some((first, domain_of_first)) = domains.next() else {
        return Verdict::accept(Vec::new());
    };
    // The two vnodes that are in different domains, or the one that is in none.
    let apart = match domain_of_first {
        None => Some((first, None)),
        Some(domain) => domains
            .find(|(_, other)| *other != Some(domain))
            .map(|(vnode, other)| match other {
                None => (vnode, None),
                Some(_) => (first, Some(vnode)),
            }),
    };
    let Some(apart) = apart else {
        return Verdict::accept(Vec::new());
    };
    let level = &wish.level;
    if is_subjob(&event.job.id) {
        let sentence = match apart {
            (one, Some(other)) => refused::spread_subjob(&wish, level, one, other),
            (vnode, None) => refused::nowhere_subjob(&wish, level, vnode),
        };
        return Verdict::reject(sentence.to_string());
    }
    let earlier = said(job, VETOES).and_then(|text| text.parse::<u64>().ok());
    let tries = earlier.unwrap_or(0).saturating_add(1);
    // The planner takes jobs that wait in their queue (state Q), and cannot tell the hook's time to wait for from a user's.
    let minutes = usize::try_from(tries - 1)
        .ok()
        .filter(|_| !event.planner)
        .and_then(|nth| MINUTES.get(nth));
    let mut edits: Vec<Edit> = together(job, shared).into_iter().collect();
    let sentence = match (minutes, apart) {
        (Some(minutes), (one, Some(other))) => {
            refused::spread(&wish, level, one, other, tries, minutes)
        }
        (Some(minutes), (vnode, None)) => refused::nowhere(&wish, level, vnode, tries, minutes),
        (None, (one, Some(other))) => refused::spread_in_queue(&wish, level, one, other),
        (None, (vnode, None)) => refused::nowhere_in_queue(&wish, level, vnode),
    };
    if let Some(minutes) = minutes {
        edits.push(Edit::Resource {
            name: VETOES.into(),
            value: Value::Number(tries),
        });
        edits.push(Edit::StartAfter {
            value: event.now.saturating_add(60 * minutes),
        });
    }
    Verdict {
        edits,
        ..Verdict::reject(sentence.to_string())
    }
}

/// The place with a group that holds the job together, where it has none: a wish that is a default of a queue or of the server comes to
/// the job after the hook has seen it, and without a group pbs_sched would spread it each time anew while a domain is free.
fn together(job: &Resources, shared: &str) -> Option<Edit> {
    let mut place = match said(job, "place").unwrap_or_default() {
        "" => Place::default(),
        given => Place::parse(given).ok()?,
    };
    if place.group.is_some() {
        return None;
    }
    place.group = Some(shared.into());
    place.arrangement.get_or_insert(Arrangement::Free);
    Some(Edit::Resource {
        name: "place".into(),
        value: Value::Text(place.to_string()),
    })
}

/// Whether a job is one of an array. pbs_server makes it for this start; given a time to wait for it would be in state W, which is not
/// counted among the subjobs that are left: the array would end, and be freed under it. So nothing of it is changed.
fn is_subjob(id: &str) -> bool {
    id.contains('[')
}

/// The domain of a vnode. Its host is the name of it before the bracket, where PBS does not say it.
fn domain<'a>(vnode: &'a str, shared: &str, resources: Option<&'a Resources>) -> Option<&'a str> {
    let known = resources.and_then(|resources| said(resources, shared));
    let host = || host_of(vnode);
    known.or_else(|| (shared == "host").then(host))
}
