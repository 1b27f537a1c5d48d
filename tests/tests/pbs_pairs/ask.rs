//! Requests: the select, place and old forms in which jobs ask, and the states that they meet.

use gpuos_model::rng::Rng;

use super::site::{FEATURES, GPUS, MODELS, QUEUES, Site, one_of, pick};
use super::stories;

/// What is done in both PBS, one after the other.
#[derive(Clone, Debug)]
pub enum Step {
    /// `qsub` of a job by a user; its name is `{0}` for the first of a request, and so on.
    Submit {
        /// Who.
        user: &'static str,
        /// Options, as a shell reads them.
        options: String,
        /// The job ends at once with this status; otherwise it stays until it is deleted.
        exits: Option<u8>,
    },
    /// `pbs_rsub` by a user, `{S}` for the moment when it starts, in seconds from now; its name is `{R}`.
    Reserve {
        /// Who.
        user: &'static str,
        /// In how many seconds it starts.
        starts: u64,
        /// Options.
        options: String,
    },
    /// A command of a user, or of root, that the server accepts or refuses.
    Tell {
        /// Who.
        user: &'static str,
        /// What a shell reads.
        line: String,
    },
    /// A cycle of the scheduler, without a look.
    Cycle,
    /// A cycle and a look, and where jobs wait another cycle and look.
    Look,
    /// Until the job with this number has ended, where it runs.
    Ended(usize),
    /// Until a command of the head succeeds, for a while.
    Until(String),
}

/// Steps that are tried in a state.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The steps.
    pub steps: Vec<Step>,
    /// What root does afterwards, so that the state is what it was.
    pub undo: Vec<String>,
}

/// What the cluster is like, and what is asked for in it.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// What makes it.
    pub made_by: Request,
    /// What is asked for, one after the other.
    pub requests: Vec<Request>,
}

/// Users of a lab.
pub const USERS: [&str; 2] = ["user1", "user2"];

impl Step {
    /// A job that stays.
    pub fn submit(user: &'static str, options: impl Into<String>) -> Step {
        let (options, exits) = (options.into(), None);
        Step::Submit {
            user,
            options,
            exits,
        }
    }

    /// A command.
    pub fn tell(user: &'static str, line: impl Into<String>) -> Step {
        let line = line.into();
        Step::Tell { user, line }
    }

    /// What a reader does to see it himself.
    pub fn words(&self) -> String {
        match self {
            Step::Submit {
                user,
                options,
                exits: None,
            } => format!("{user}: qsub {options}"),
            Step::Submit {
                user,
                options,
                exits: Some(status),
            } => format!("{user}: qsub {options} -- exit {status}"),
            Step::Reserve {
                user,
                starts,
                options,
            } => format!("{user}: pbs_rsub {options} in {starts} s"),
            Step::Tell { user, line } => format!("{user}: {line}"),
            Step::Cycle => "a cycle".into(),
            Step::Look => "a cycle and a look".into(),
            Step::Ended(job) => format!("until {{{job}}} has ended"),
            Step::Until(line) => format!("until {line}"),
        }
    }
}

impl Request {
    /// A job that is asked for and looked at.
    pub fn one(user: &'static str, options: String) -> Request {
        Request {
            steps: vec![Step::submit(user, options), Step::Look],
            undo: Vec::new(),
        }
    }

    /// Its steps in words.
    pub fn words(&self) -> String {
        let steps = self.steps.iter().map(Step::words);
        steps.collect::<Vec<_>>().join("\n  ")
    }
}

/// Every how many requests one of several steps is tried.
const STORY_EVERY: usize = 4;

impl State {
    /// A state with so many requests.
    pub fn of(rng: &mut Rng, site: &Site, requests: usize) -> State {
        let mut made_by = Request::default();
        for _ in 0..pick(rng, &[0, 0, 1, 2, 3, 4]) {
            made_by.steps.push(hold(rng, site));
        }
        if rng.below(5) == 0 {
            let vnodes = one_of(rng, &site.hosts).vnodes().join(" ");
            let line = format!("pbsnodes -o {vnodes}");
            made_by.steps.push(Step::tell("root", line));
            made_by.undo.push(format!("pbsnodes -r {vnodes}"));
        }
        if rng.below(4) == 0 {
            made_by.steps.push(Step::Reserve {
                user: "user1",
                starts: 3600,
                options: format!("-D 2:00:00 {}", select(rng, site)),
            });
        }
        if rng.below(4) == 0 {
            let options = format!("-h {}", select(rng, site));
            made_by.steps.push(Step::submit("user2", options));
        }
        made_by.steps.push(Step::Look);
        let request = |at: usize| match at % STORY_EVERY {
            0 => stories::of(rng, site),
            _ => Request::one(pick(rng, &USERS), request(rng, site)),
        };
        State {
            made_by,
            requests: (1..=requests).map(request).collect(),
        }
    }
}

/// A job on a host that is named, so that it lies in the same place in both.
fn hold(rng: &mut Rng, site: &Site) -> Step {
    let host = one_of(rng, &site.hosts);
    let half = if host.split { 2 } else { 1 };
    let (cpus, gpus) = (host.ncpus / half, host.ngpus / half);
    let ngpus = rng.below(gpus + 1);
    let ncpus = 1 + rng.below(cpus / 2);
    let place = pick(
        rng,
        &["", "", "", " -l place=excl", " -l place=pack:exclhost"],
    );
    let queue = host.queue.unwrap_or("workq");
    let vnode = one_of(rng, &host.vnodes()).clone();
    let select = format!("-q {queue} -l select=1:vnode={vnode}:ncpus={ncpus}:ngpus={ngpus}{place}");
    Step::submit(pick(rng, &USERS), select)
}

/// What a chunk asks for.
fn chunk(rng: &mut Rng, site: &Site) -> String {
    let mut words = Vec::new();
    if rng.below(8) > 0 {
        words.push(format!(
            "ncpus={}",
            pick(rng, &[0, 1, 1, 1, 2, 2, 4, 8, 16, 33])
        ));
    }
    if rng.below(8) > 0 {
        let most = if rng.below(6) == 0 { GPUS + 2 } else { 5 };
        words.push(format!("ngpus={}", rng.below(most)));
    }
    if rng.below(5) == 0 {
        words.push(format!(
            "mem={}",
            pick(rng, &["100mb", "8gb", "40gb", "70gb"])
        ));
    }
    for _ in 0..2 {
        let host = one_of(rng, &site.hosts);
        match rng.below(18) {
            0 | 1 => words.push(format!("gmodel={}", pick(rng, &MODELS))),
            2 => words.push(format!("ib={}", pick(rng, &["true", "true", "false"]))),
            3 => words.push(format!("feature={}", pick(rng, &FEATURES))),
            4 => words.push(format!("rack={}", pick(rng, &["r1", "r2"]))),
            5 => words.push(format!("scratch={}", pick(rng, &["50gb", "300gb"]))),
            6 => words.push("seat=1".into()),
            7 => words.push("arch=linux".into()),
            8 => words.push(format!("host={}", host.name)),
            9 => words.push(format!("vnode={}", one_of(rng, &host.vnodes()))),
            _ => {}
        }
    }
    words.sort();
    words.dedup_by(|a, b| a.split('=').next() == b.split('=').next());
    match words.is_empty() {
        true => "ncpus=1".into(),
        false => words.join(":"),
    }
}

/// `-l select=` with chunks of one to three kinds, and sometimes `-l place=`.
pub fn select(rng: &mut Rng, site: &Site) -> String {
    let kinds = pick(rng, &[1, 1, 1, 1, 2, 2, 3]);
    let kind = |rng: &mut Rng| {
        let count = pick(rng, &[1, 1, 1, 2, 2, 3, 4, 6]);
        format!("{count}:{}", chunk(rng, site))
    };
    let kinds: Vec<String> = (0..kinds).map(|_| kind(rng)).collect();
    format!("-l select={}{}", kinds.join("+"), place(rng))
}

fn place(rng: &mut Rng) -> &'static str {
    let places = [
        "",
        "",
        "",
        "",
        " -l place=free",
        " -l place=pack",
        " -l place=scatter",
        " -l place=scatter",
        " -l place=vscatter",
        " -l place=excl",
        " -l place=scatter:excl",
        " -l place=exclhost",
        " -l place=pack:shared",
        " -l place=scatter:group=rack",
        " -l place=pack:group=host",
        " -l place=group=gmodel",
    ];
    pick(rng, &places)
}

/// Options of a job.
fn request(rng: &mut Rng, site: &Site) -> String {
    let few = 1 + rng.below(3);
    let mut options = match rng.below(12) {
        0 => {
            let more = pick(
                rng,
                &["", ":ib", ":mem=1gb", "#excl", "#shared", ":ngpus=2"],
            );
            format!("-l nodes={few}:ppn={}{more}", 1 + rng.below(8))
        }
        1 => format!("-l nodes={}:ppn=2+1:ppn=1", one_of(rng, &site.hosts).name),
        2 => format!("-l ngpus={} -l ncpus={}", rng.below(10), 1 + rng.below(8)),
        3 => format!("-l ngpus={few} -l gmodel={}", pick(rng, &MODELS)),
        4 => format!("-l ncpus={few} -l ib=true -l mem=2gb{}", place(rng)),
        5 => match rng.below(3) {
            0 => "-J 1-40 -l select=1:ncpus=1".into(),
            1 => format!("-J 1-12 -l select=1:ncpus=1:ngpus={few}"),
            _ => format!("-J 1-9:2 {}", select(rng, site)),
        },
        _ => select(rng, site),
    };
    if rng.below(3) == 0 {
        options += &format!(" -q {}", pick(rng, &QUEUES));
    }
    match rng.below(8) {
        0 => options += " -l walltime=00:10:00",
        1 => options += &format!(" -l walltime={}:00:00", pick(rng, &["1", "2", "30"])),
        2 => options += &format!(" -l tok={}", pick(rng, &["1", "1.5", "3"])),
        _ => {}
    }
    options
}
