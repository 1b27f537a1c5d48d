//! One side of a comparison: a lab in which all states are made and all requests tried, by one script.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use gpuos_tests::{Cluster, program};

use super::ask::State;

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It started.
    Started {
        /// GPUs by node.
        gpus: BTreeMap<String, u64>,
        /// Whether an srun in it ran, where one was tried.
        step: Option<bool>,
        /// What the commands wrote beside.
        said: String,
    },
    /// It did not: what salloc said.
    Refused(String),
}

impl Outcome {
    /// GPUs in all.
    pub fn gpus(&self) -> u64 {
        match self {
            Outcome::Started { gpus, .. } => gpus.values().sum(),
            Outcome::Refused(_) => 0,
        }
    }
}

/// What came of a state.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    /// What of each node is in use, before anything is asked for.
    pub used: Vec<String>,
    /// One for each request, as far as slurmctld came.
    pub outcomes: Vec<Outcome>,
    /// In how many seconds each would start, as `sbatch --test-only` says; `None`: it says nothing of that.
    pub forecasts: Vec<Option<i64>>,
    /// slurmctld ended at the last of them.
    pub slurmctld_ended: bool,
}

const HEAD: &str = r#"
rest() {
    turn=0
    while jobs=$(timeout 30 squeue -h -o %i) || ended; do
        [ $(echo "$jobs" | grep -c .) -gt "$1" ] && [ $turn -lt 400 ] || return 0
        sleep 0.03; turn=$((turn + 1))
    done
}
# Nothing more can be asked of this cluster.
ended() { echo "== slurmctld ended"; exit 0; }
INSIDE='scontrol -d show job $SLURM_JOB_ID | grep -E "^JobId=|CPU_IDs="
if [ $1 = 1 ]; then timeout 40 srun true && echo STEP good || echo STEP bad; fi'
try() {
    step=$1; shift
    echo "== request"
    at=$(timeout 8 sbatch --test-only "$@" "$0" 2>&1 | sed -n 's/.* to start at \([^ ]*\) .*/\1/p')
    [ -z "$at" ] || echo "FORECAST $(($(date -d "$at" +%s) - $(date +%s)))"
    # salloc asks again for minutes where slurmctld ends at its request.
    limit=8
    [ $step = 0 ] || limit=60
    timeout $limit salloc -I -Q "$@" sh -c "$INSIDE" inside $step </dev/null 2>&1
    rest $held
}
hold() { salloc -I -Q --no-shell "$@" </dev/null >/dev/null 2>&1; }
"#;

/// The longest that all requests of a cluster may take: on some a step waits for what it never gets.
const WHOLE: Duration = Duration::from_secs(1800);

/// Makes the states in a lab, one after the other, and tries their requests. `own`: what jobs that only hold something are given
/// beside, so that the lab's own selection has no say in where they lie.
pub fn run(cluster: &Cluster, states: &[State], own: &[&str]) -> Vec<Seen> {
    let mut text = format!("#!/bin/sh{HEAD}");
    let line = |words: &[&str]| {
        let quoted = words.iter().map(|word| format!("'{word}'"));
        quoted.collect::<Vec<_>>().join(" ")
    };
    for state in states {
        text += "echo '= state'\n";
        for hold in &state.holds {
            let words: Vec<&str> = hold
                .iter()
                .map(String::as_str)
                .chain(own.to_vec())
                .collect();
            let _ = writeln!(text, "hold {}", line(&words));
        }
        text += "held=$(squeue -h -o %i | wc -l)\nscontrol -d -o show node\n";
        for request in &state.requests {
            let words: Vec<&str> = request.options.iter().map(String::as_str).collect();
            let _ = writeln!(text, "try {} {}", u8::from(request.step), line(&words));
        }
        text += "scancel -u root; rest 0\n";
    }
    text += "exit 0\n";
    let file = cluster.lab.dir().join("work/pairs");
    program(&file, &text);
    let said = cluster
        .lab
        .output_within("sh", &[&file.to_string_lossy()], WHOLE);
    let said = said.expect("the script of requests runs").stdout;
    let said = String::from_utf8_lossy(&said);
    said.split("= state\n").skip(1).map(read).collect()
}

fn read(text: &str) -> Seen {
    let mut parts = text.split("=\n").flat_map(|part| part.split("= request\n"));
    let nodes = parts.next().unwrap_or_default();
    let used = nodes.lines().filter_map(|line| {
        let get = |key| gpuos_lab::field(line, key);
        Some(format!(
            "{} {} CPUs, {}",
            get("NodeName")?,
            get("CPUAlloc").unwrap_or_default(),
            get("GresUsed").unwrap_or_default()
        ))
    });
    let requests = text.split("== request\n").skip(1);
    Seen {
        used: used.collect(),
        outcomes: requests.clone().map(outcome).collect(),
        forecasts: requests.map(forecast).collect(),
        slurmctld_ended: text.contains("== slurmctld ended\n"),
    }
}

fn forecast(text: &str) -> Option<i64> {
    let said = text.lines().find_map(|line| line.strip_prefix("FORECAST "));
    said.and_then(|said| said.parse().ok())
}

fn outcome(text: &str) -> Outcome {
    let shown = |line: &&str| line.trim_start().starts_with("Nodes=") && line.contains("CPU_IDs=");
    if !text.contains("JobId=") {
        return Outcome::Refused(text.trim().to_owned());
    }
    let mut gpus = BTreeMap::new();
    for line in text.lines().filter(shown) {
        let nodes = gpuos_lab::field(line.trim(), "Nodes").unwrap_or_default();
        let gres = line.split("GRES=").nth(1).unwrap_or_default();
        let names = gpuos_model::hostlist::expand(nodes).expect("a list of nodes");
        for node in names {
            gpus.insert(node, count(gres));
        }
    }
    let words = ["error", "srun:", "salloc:"];
    let said = text
        .lines()
        .filter(|line| words.iter().any(|word| line.contains(word)));
    Outcome::Started {
        gpus,
        step: text.lines().find_map(|line| match line {
            "STEP good" => Some(true),
            "STEP bad" => Some(false),
            _ => None,
        }),
        said: said.collect::<Vec<_>>().join("; "),
    }
}

/// How many GPUs `gpu:a:2(IDX:0-1),gpu:b:1(IDX:4)` are.
fn count(gres: &str) -> u64 {
    let mut rest = gres.to_owned();
    while let Some((before, after)) = rest.split_once('(') {
        let (_, after) = after.split_once(')').unwrap_or(("", ""));
        rest = format!("{before}{after}");
    }
    let parts = rest.split(',').filter(|part| part.starts_with("gpu"));
    parts
        .filter_map(|part| part.rsplit(':').next()?.trim().parse::<u64>().ok())
        .sum()
}

#[test]
fn gpus_of_a_line_are_counted() {
    assert_eq!(count("gpu:a:2(IDX:0-1),gpu:b:1(IDX:4)"), 3);
    assert_eq!(count("gpu:3(IDX:0,2,7)"), 3);
    assert_eq!(count(""), 0);
}
