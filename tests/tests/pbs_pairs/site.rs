//! Sites: hosts with resources of their own, queues with limits, and what the scheduler is told.

use std::fmt::Write as _;

use gpuos_model::rng::Rng;

use super::host::Host;

/// GPUs that every host of the lab has, whatever its site counts.
pub const GPUS: u64 = 8;

/// Resources that sites make beside `ngpus`: name, type and flags.
const RESOURCES: [(&str, &str, &str); 7] = [
    ("gmodel", "string", "h"),
    ("ib", "boolean", "h"),
    ("feature", "string_array", "h"),
    ("rack", "string_array", "h"),
    ("scratch", "size", "nh"),
    ("seat", "long", "nh"),
    ("tok", "float", "q"),
];

/// Models of GPUs.
pub const MODELS: [&str; 3] = ["h100", "a100", "l40"];

/// Words of a `string_array`.
pub const FEATURES: [&str; 3] = ["fast", "big", "new"];

/// A site.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its hosts.
    pub hosts: Vec<Host>,
    /// Lines for qmgr, without those of its hosts.
    pub settings: String,
    /// Lines of sched_config, each in place of those of that name.
    pub sched_config: Vec<(&'static str, String)>,
    /// Whether jobs run already when gpuos is installed.
    pub running_at_install: bool,
    /// Whether the site says more of its hosts than counts only when gpuos is installed.
    pub labels_after_install: bool,
}

/// The queues of all sites: of no limits, for GPUs, of some hosts alone, before others, stopped, of one user, and with defaults; and one that
/// leads to others.
pub const QUEUES: [&str; 8] = [
    "workq", "gpu", "big", "express", "stopped", "own", "lean", "route",
];

impl Site {
    /// The site of a seed.
    pub fn of(rng: &mut Rng) -> Site {
        let bound = rng.below(2) == 0;
        let split = rng.below(3) == 0;
        let host = |at: u64, rng: &mut Rng| {
            let mut labels = Vec::new();
            let mut label = |name: &str, value: &str| {
                labels.push(format!("resources_available.{name} = {value}"));
            };
            label("gmodel", pick(rng, &MODELS[..2 + (at as usize % 2)]));
            label(
                "rack",
                ["\"r1\"", "\"r1\"", "\"r2\"", "\"r2\""][at as usize],
            );
            if rng.below(2) == 0 {
                label("ib", "True");
            }
            if rng.below(2) == 0 {
                label(
                    "feature",
                    pick(rng, &["fast", "\"fast,big\"", "\"big,new\""]),
                );
            }
            if rng.below(3) == 0 {
                label("seat", &rng.below(4).to_string());
            }
            label("scratch", pick(rng, &["100gb", "500gb", "0gb"]));
            Host {
                name: format!("n{}", at + 1),
                ncpus: pick(rng, &[8, 16, 16, 32]),
                ngpus: pick(rng, &[GPUS, GPUS, GPUS, GPUS, GPUS, 4, 0]),
                labels,
                queue: (bound && at == 2).then_some("big"),
                split: split && at == 3,
            }
        };
        let hosts = (0..4).map(|at| host(at, rng)).collect();
        Site {
            hosts,
            settings: settings(rng),
            sched_config: scheduler(rng),
            running_at_install: rng.below(3) == 0,
            labels_after_install: rng.below(2) == 0,
        }
    }

    /// Lines for qmgr: the resources, then what has them.
    pub fn resources() -> String {
        let line = |(name, kind, flags): &(&str, &str, &str)| {
            format!("create resource {name} type={kind}, flag={flags}\n")
        };
        RESOURCES.iter().map(line).collect()
    }

    /// Lines for qmgr: queues, limits and counts of hosts.
    pub fn lines(&self) -> String {
        let hosts = self.hosts.iter().map(Host::counts);
        self.settings.clone() + &hosts.collect::<String>()
    }

    /// Lines for qmgr: what else is said of hosts.
    pub fn labels(&self) -> String {
        self.hosts.iter().map(Host::labels).collect()
    }

    /// The line `resources:` of sched_config.
    pub fn counted() -> String {
        let names = RESOURCES.iter().map(|(name, _, _)| *name);
        let usual = [
            "ngpus", "ncpus", "mem", "arch", "host", "vnode", "aoe", "eoe",
        ];
        let all: Vec<&str> = usual.into_iter().chain(names).collect();
        format!("\"{}\"", all.join(", "))
    }

    /// What a reader has to know to make it himself.
    pub fn describe(&self) -> String {
        let mut text = self.lines() + &self.labels();
        if self.labels_after_install {
            text += "(what is not counted was set after gpuos was installed)\n";
        }
        for (name, value) in &self.sched_config {
            let _ = writeln!(text, "sched_config: {name}: {value}");
        }
        text
    }
}

/// Lines for qmgr: the queues, as yet without limits.
pub fn queues() -> String {
    let mut text = String::new();
    let mut add = |line: &str| {
        let _ = writeln!(text, "{line}");
    };
    for queue in QUEUES {
        let kind = match queue {
            "route" => "Route",
            _ => "Execution",
        };
        let started = if queue == "stopped" { "False" } else { "True" };
        if queue != "workq" {
            add(&format!("create queue {queue} queue_type = {kind}"));
        }
        if queue == "route" {
            add("set queue route route_destinations = \"gpu,workq\"");
        } else {
            add(&format!("set queue {queue} kill_delay = 1"));
        }
        add(&format!(
            "set queue {queue} enabled = True, started = {started}"
        ));
    }
    text
}

fn settings(rng: &mut Rng) -> String {
    let mut text = queues();
    let mut add = |line: &str| {
        let _ = writeln!(text, "{line}");
    };
    add("set queue gpu resources_min.ngpus = 1");
    add(&format!(
        "set queue gpu resources_max.ngpus = {}",
        pick(rng, &[4, 8, 16])
    ));
    add("set queue gpu resources_default.walltime = 01:00:00");
    add("set queue express Priority = 200");
    add("set queue own acl_user_enable = True, acl_users = user1");
    let lean = [
        "default_chunk.ngpus = 1",
        "resources_default.ngpus = 2",
        "resources_default.place = scatter",
        "default_chunk.gmodel = h100",
        "resources_default.select = 2:ncpus=1:ngpus=1",
        "resources_max.ncpus = 4",
    ];
    add(&format!("set queue lean {}", pick(rng, &lean)));
    match rng.below(6) {
        0 => add("set server default_queue = route"),
        1 => add("set server default_queue = gpu"),
        2 => add("set server default_queue = lean"),
        _ => {}
    }
    add("set server resources_available.tok = 2.5");
    match rng.below(4) {
        0 => add("set server max_run_res.ngpus = [u:PBS_GENERIC=6]"),
        1 => add("set queue workq max_run = [u:PBS_GENERIC=2]"),
        _ => {}
    }
    if rng.below(3) == 0 {
        add("set server node_group_key = rack, node_group_enable = True");
        if rng.below(2) == 0 {
            add("set sched do_not_span_psets = True");
        }
    }
    match rng.below(4) {
        0 => add("set sched preempt_order = R"),
        1 => add("set sched preempt_order = \"SR\""),
        _ => {}
    }
    text
}

fn scheduler(rng: &mut Rng) -> Vec<(&'static str, String)> {
    let mut lines = vec![("resources", Site::counted())];
    if rng.below(3) == 0 {
        lines.push(("smp_cluster_dist", "round_robin".into()));
    }
    if rng.below(4) == 0 {
        lines.push(("strict_ordering", "true ALL".into()));
    }
    if rng.below(4) == 0 {
        lines.push(("node_sort_key", "\"ncpus HIGH unused\" ALL".into()));
    }
    lines
}

/// One of several.
pub fn one_of<'a, T>(rng: &mut Rng, all: &'a [T]) -> &'a T {
    &all[rng.below(all.len() as u64) as usize]
}

/// The same of numbers and words.
pub fn pick<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    *one_of(rng, all)
}
