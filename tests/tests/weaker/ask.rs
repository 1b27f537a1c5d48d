//! Forms in which jobs ask for GPUs, and what holds part of a cluster meanwhile.

use gpuos_model::rng::Rng;

use super::site::{Group, Site, pick};

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Options of salloc.
    pub options: Vec<String>,
    /// Whether an srun in the job is tried.
    pub step: bool,
}

/// Jobs that hold a part of a cluster, and what is asked for beside them.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Options of each job that runs.
    pub holds: Vec<Vec<String>>,
    /// What is asked for, one after the other.
    pub requests: Vec<Request>,
}

/// Every how many requests an srun is tried.
const STEP_EVERY: usize = 3;

impl State {
    /// Some jobs on a cluster, and so many requests.
    pub fn of(rng: &mut Rng, site: &Site, requests: usize) -> State {
        let count = *pick(rng, &[0, 1, 1, 2, 3, 4, 5]);
        let holds = (0..count).map(|_| hold(rng, site)).collect();
        let request = |at: usize, rng: &mut Rng| Request {
            options: request(rng, site),
            step: at.is_multiple_of(STEP_EVERY),
        };
        State {
            holds,
            requests: (0..requests).map(|at| request(at, rng)).collect(),
        }
    }
}

impl State {
    /// As [`State::of`], with requests for several GPUs of few nodes alone: what links decide.
    pub fn of_links(rng: &mut Rng, site: &Site, requests: usize) -> State {
        let mut state = State::of(rng, site, 0);
        for at in 0..requests {
            let gpus = site.groups[0].gpus;
            let count = 1 + rng.below(gpus);
            let options = match rng.below(6) {
                0 => vec![format!("--gpus={count}"), "-N1".into()],
                1 => vec![format!("--gpus={}", count.max(2)), "-N2".into()],
                2 => vec!["--gpus-per-task=1".into(), format!("-n{count}")],
                3 => vec![format!("--gres=gpu:{count}"), "-N2".into()],
                _ => vec![format!("--gres=gpu:{count}")],
            };
            let step = at.is_multiple_of(STEP_EVERY);
            state.requests.push(Request { options, step });
        }
        state
    }
}

fn group_of<'a>(rng: &mut Rng, site: &'a Site) -> &'a Group {
    pick(rng, &site.groups)
}

/// A job on a node that is named, so that it lies in the same place in both clusters.
fn hold(rng: &mut Rng, site: &Site) -> Vec<String> {
    let group = group_of(rng, site);
    let node = pick(rng, &group.nodes);
    let mut options = vec![format!("-w{node}"), "-N1".into()];
    let cores = group.sockets * group.cores;
    match rng.below(8) {
        0 => options.push("--exclusive".into()),
        1 => options.push(format!("-c{}", 1 + rng.below(cores))),
        _ => {
            options.push(format!("--gres=gpu:{}", 1 + rng.below(group.gpus)));
            if rng.below(2) == 0 {
                options.push(format!("-c{}", 1 + rng.below(cores / 2 + 1)));
            }
        }
    }
    options
}

/// A form of request with what goes beside it.
fn request(rng: &mut Rng, site: &Site) -> Vec<String> {
    let group = group_of(rng, site);
    let (gpus, cores) = (group.gpus, group.sockets * group.cores);
    let some = |rng: &mut Rng, most: u64| 1 + rng.below(most.max(1));
    let kind = match group.types[..] {
        [] => String::new(),
        ref all if rng.below(3) == 0 => format!("{}:", pick(rng, all)),
        _ => String::new(),
    };
    let mut options: Vec<String> = Vec::new();
    let mut add = |text: String| options.push(text);
    let nodes = ["-N1", "-N1", "-N2", "-N1-3", "-N2-4", ""];
    let nodes = pick(rng, &nodes).to_string();
    let mut tasks = true;
    match rng.below(12) {
        0..3 => add(format!("--gres=gpu:{kind}{}", some(rng, gpus))),
        3 | 4 => add(format!("--gpus-per-node={kind}{}", some(rng, gpus))),
        5..8 => add(format!("--gpus={kind}{}", some(rng, 2 * gpus))),
        8 => {
            add(format!("--gpus-per-task={kind}{}", some(rng, gpus / 2)));
            add(format!("-n{}", some(rng, 4)));
            tasks = false;
        }
        9 => {
            add(format!("--gpus-per-socket={kind}{}", some(rng, gpus / 2)));
            add(format!("--sockets-per-node={}", some(rng, group.sockets)));
        }
        10 => {
            let each = some(rng, gpus);
            add(format!("--gpus={kind}{}", each * some(rng, 2)));
            add(format!("--gpus-per-node={kind}{each}"));
        }
        _ => match group.types[..] {
            [a, b] => add(format!("--gres=gpu:{a}:1,gpu:{b}:1")),
            _ => add(format!("--gres=gpu:{}", some(rng, gpus))),
        },
    }
    if !nodes.is_empty() {
        add(nodes);
    }
    if tasks && rng.below(2) == 0 {
        match rng.below(5) {
            0 => add(format!("-n{}", some(rng, cores))),
            1 => add(format!("--ntasks-per-node={}", some(rng, 4))),
            2 => add(format!("--ntasks-per-gpu={}", some(rng, 2))),
            3 => add(format!("--ntasks-per-socket={}", some(rng, 2))),
            _ => add(format!("-n{}", some(rng, 4))),
        }
    }
    if rng.below(2) == 0 {
        let node = pick(rng, &group.nodes).clone();
        match rng.below(14) {
            0 | 1 => add(format!("-c{}", some(rng, cores / 2))),
            2 => add(format!("--cpus-per-gpu={}", some(rng, 3))),
            3 => add(format!("--mem-per-gpu={}", some(rng, 8000))),
            4 => add("--exclusive".into()),
            5 | 6 => add("--gres-flags=enforce-binding".into()),
            7 => add(format!("--mincpus={}", some(rng, cores))),
            8 => add(format!("-w{node}")),
            9 => add(format!("-x{node}")),
            10 => add("--spread-job".into()),
            11 => add("--use-min-nodes".into()),
            12 => add("--switches=1".into()),
            _ => add("--overcommit".into()),
        }
    }
    options
}
