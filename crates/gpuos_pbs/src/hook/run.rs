//! A job that is about to be started: one that requires a level is put off while PBS would spread it.

use super::event::{Edit, Event, Resources, Value, Verdict};
use super::options::{self, said};
use super::refused;
use super::resources::{NGPUS, VETOES};
use super::submit::shared_resource;
use super::vnodes::{gpu_of, parse_exec_vnode};

/// Minutes until a job is tried again that was put off, by how often it was; then the last of them.
const MINUTES: [u64; 7] = [1, 2, 4, 8, 16, 32, 60];

/// Starts a job, or puts it off: `place=group=` holds for pbs_sched, which may spread a job over sets of vnodes that could never
/// hold it, and for no operator. Who wrote `:required` waits instead, at less and less cost.
pub(super) fn started(event: &Event) -> Verdict {
    let job = &event.job.resources;
    let Some(wish) = options::read(job, event.planner)
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
    let step = usize::try_from(tries - 1)
        .unwrap_or(usize::MAX)
        .min(MINUTES.len() - 1);
    let minutes = MINUTES[step];
    let sentence = match apart {
        (one, Some(other)) => refused::spread(&wish, level, one, other, tries, minutes),
        (vnode, None) => refused::nowhere(&wish, level, vnode, tries, minutes),
    };
    let edits = vec![
        Edit::Resource {
            name: VETOES.into(),
            value: Value::Number(tries),
        },
        Edit::StartAfter {
            value: event.now.saturating_add(60 * minutes),
        },
    ];
    Verdict {
        refused: Some(sentence.to_string()),
        edits,
    }
}

/// Whether a job is one of an array. pbs_server makes it for this start; given a time to wait for it would be in state W, which is not
/// counted among the subjobs that are left: the array would end, and be freed under it. So nothing of it is changed.
fn is_subjob(id: &str) -> bool {
    id.contains('[')
}

/// The domain of a vnode. Its host is the name of it before the bracket, where PBS does not say it.
fn domain<'a>(vnode: &'a str, shared: &str, resources: Option<&'a Resources>) -> Option<&'a str> {
    let known = resources.and_then(|resources| said(resources, shared));
    let host = || gpu_of(vnode).map_or(vnode, |(host, _)| host);
    known.or_else(|| (shared == "host").then(host))
}
