//! Whatever users write into their jobs: it changes nothing else that is read of any job, and what is done to a job is
//! done to it alone. The records are what slurmctld of three releases printed, with users' texts put in as it prints
//! them: as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Result, bail};
use gpuos_host::slurm::act;
use gpuos_host::slurm::{self, Job};
use gpuos_host::{Machine, Output};
use gpuos_workload::action::{Action, Outcome};
use proptest::prelude::*;

const RELEASES: [&str; 3] = ["22.05.8", "24.11.5", "26.05.5"];

/// Where users' texts stand, and which lines Slurm adds for them behind which others.
const PLACES: &[(&str, Option<&str>)] = &[
    ("JobName", None),
    ("Account", None),
    ("MCS_label", None),
    ("AllocNode:Sid", None),
    ("Network", None),
    ("Command", None),
    ("WorkDir", None),
    ("StdErr", None),
    ("StdIn", None),
    ("StdOut", None),
    ("SubmitLine", Some("Command")),
    ("Comment", Some("WorkDir")),
    ("AdminComment", Some("WorkDir")),
    ("CrontabSpec", Some("StartTime")),
    ("Prefer", Some("Features")),
    ("TresBind", Some("StdOut")),
    ("MailUser", Some("StdOut")),
    ("Container", Some("StdOut")),
    ("BurstBuffer", Some("StdOut")),
];

fn captured(release: &str) -> String {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    std::fs::read_to_string(format!("{dir}/{release}-jobs.txt")).unwrap()
}

/// slurmctld as its commands show it.
struct Slurm {
    /// Job, record as scontrol prints it, name as squeue does.
    jobs: Vec<(Job, String, String)>,
    /// What was changed.
    did: Mutex<Vec<String>>,
}

impl Slurm {
    fn new(release: &str) -> Slurm {
        let text = captured(release);
        let starts = text.match_indices("JobId=").map(|(at, _)| at);
        let starts = starts.filter(|at| *at == 0 || text.as_bytes()[at - 1] == b'\n');
        let starts: Vec<usize> = starts.collect();
        let record = |n: usize| {
            let end = starts.get(n + 1).copied().unwrap_or(text.len());
            let record = &text[starts[n]..end];
            let job = Job::parse_all(record).remove(0);
            let name = job.name.clone();
            (job, record.to_string(), name)
        };
        Slurm {
            jobs: (0..starts.len()).map(record).collect(),
            did: Mutex::default(),
        }
    }

    /// The user of the `at`th job writes a text; of its name squeue tells the old one when it changes just then.
    fn write(&mut self, at: usize, (field, behind): (&str, Option<&str>), text: &str, just: bool) {
        let (job, record, name) = &mut self.jobs[at];
        let start = |key: &str, record: &str| {
            let at = [format!(" {key}="), format!("\n   {key}=")]
                .iter()
                .filter_map(|word| Some(record.find(word)? + word.len()))
                .min()?;
            // The value's end: of all but the last of its line the next key is close.
            let line = record[at..].find('\n').unwrap_or(record.len() - at);
            let next = record[at..at + line].find(' ').filter(|_| key == "Account");
            Some((at, at + next.unwrap_or(line)))
        };
        match (start(field, record), behind) {
            (Some((from, to)), _) => record.replace_range(from..to, text),
            (None, Some(behind)) => {
                let (_, to) = start(behind, record).unwrap();
                record.insert_str(to, &format!("\n   {field}={text}"));
            }
            (None, None) => panic!("{field}"),
        }
        match field {
            "JobName" if !just => {
                *name = text.into();
                job.name = text.into();
            }
            "Account" => job.account = text.trim().into(),
            _ => {}
        }
    }

    fn row(job: &Job, record: &str, name: &str, field: &str) -> String {
        let get = |key: &str, none: &str| {
            let line = record.split("JobName=").next().unwrap();
            let value = line
                .split(' ')
                .find_map(|word| word.strip_prefix(&format!("{key}=")[..]));
            value.unwrap_or(none).to_string()
        };
        let or = |text: &str, none: &str| match text {
            "" => none.to_string(),
            text => text.to_string(),
        };
        let list = |nodes: &[String]| nodes.join(",");
        match field {
            "JobID" => job.id.to_string(),
            "ArrayJobID" => get("ArrayJobId", &job.id.to_string()),
            "ArrayTaskID" => get("ArrayTaskId", "N/A"),
            "HetJobID" => get("HetJobId", "N/A"),
            "HetJobOffset" => get("HetJobOffset", "N/A"),
            "UserID" => job.uid.to_string(),
            "UserName" => job.user.clone(),
            "State" => job.state.clone(),
            "RestartCnt" => job.restarts.to_string(),
            "Requeue" | "BatchFlag" => u8::from(job.may_requeue).to_string(),
            "NodeList" => list(&job.nodes),
            "ReqNodes" => list(&job.required_nodes),
            "Name" => name.to_string(),
            "Feature" => or(&job.features, "(null)"),
            "Licenses" => or(&job.licenses, "(null)"),
            "Reservation" => or(&job.reservation, "(null)"),
            "system_comment" => or(&job.system_comment, "(null)"),
            "cpus-per-tres" => or(&job.cpus_per_tres, "N/A"),
            "mem-per-tres" => or(&job.mem_per_tres, "N/A"),
            "tres-per-job" => or(&job.tres_per_job, "N/A"),
            "tres-per-node" => or(&job.tres_per_node, "N/A"),
            "tres-per-socket" => or(&job.tres_per_socket, "N/A"),
            "tres-per-task" => or(&job.tres_per_task, "N/A"),
            "PriorityLong" => "4294901757".into(),
            "admin_comment" => or(&job.admin_comment, "(null)"),
            other => panic!("squeue has no field {other} on every release"),
        }
    }
}

impl Machine for Slurm {
    fn run(&self, program: &str, args: &[&str]) -> Result<Output> {
        let stdout = match (program, args) {
            ("scontrol", ["-d", "show", "jobs"]) => {
                self.jobs.iter().map(|(_, record, _)| &record[..]).collect()
            }
            ("scontrol", ["-d", "show", "job", which]) => {
                let meant = |job: &Job| job.label == *which || job.id.to_string() == *which;
                let all = self.jobs.iter().filter(|(job, ..)| meant(job));
                all.map(|(_, record, _)| &record[..]).collect()
            }
            ("scontrol" | "scancel", _) => {
                let line = format!("{program} {}", args.join(" "));
                self.did.lock().unwrap().push(line);
                String::new()
            }
            _ => bail!("{program} {args:?}"),
        };
        Ok(Output {
            ok: true,
            stdout,
            stderr: String::new(),
        })
    }

    fn run_within(&self, _: Duration, program: &str, args: &[&str]) -> Result<Output> {
        self.run(program, args)
    }

    fn run_with_env(
        &self,
        _: Duration,
        (name, format): (&str, &str),
        program: &str,
        args: &[&str],
    ) -> Result<Output> {
        if program == "scontrol" {
            assert_eq!((name, format), ("SLURM_TIME_FORMAT", "%s"));
            return self.run(program, args);
        }
        assert_eq!((name, program), ("SQUEUE_FORMAT2", "squeue"));
        let fields: Vec<(&str, &str)> = format
            .split(',')
            .map(|field| field.split_once(':').unwrap())
            .collect();
        let mut stdout = fields.iter().map(|(name, end)| format!("{name}{end}"));
        let mut stdout: String = stdout.by_ref().collect();
        let number = args
            .iter()
            .position(|arg| *arg == "-j")
            .map(|at| args[at + 1]);
        for (job, record, name) in &self.jobs {
            if number.is_some_and(|number| number != job.id.to_string()) {
                continue;
            }
            stdout.push('\n');
            for (field, end) in &fields {
                stdout += &Slurm::row(job, record, name, field);
                stdout += end;
            }
        }
        Ok(Output {
            ok: true,
            stdout: stdout + "\n",
            stderr: String::new(),
        })
    }
}

/// Words that Slurm uses.
const KEYS: &[&str] = &[
    "JobId",
    "ArrayJobId",
    "ArrayTaskId",
    "HetJobId",
    "HetJobOffset",
    "JobName",
    "UserId",
    "Priority",
    "Account",
    "QOS",
    "WCKey",
    "JobState",
    "Reason",
    "Dependency",
    "Requeue",
    "Restarts",
    "NodeList",
    "ReqNodeList",
    "ExcNodeList",
    "SchedNodeList",
    "NumNodes",
    "TRES",
    "AllocTRES",
    "Socks/Node",
    "JOB_GRES",
    "Nodes",
    "CPU_IDs",
    "Mem",
    "GRES",
    "MinCPUsNode",
    "Features",
    "Reservation",
    "OverSubscribe",
    "Exclusive",
    "Licenses",
    "Network",
    "Command",
    "SubmitLine",
    "WorkDir",
    "SystemComment",
    "Comment",
    "TresPerNode",
    "TresPerJob",
    "CpusPerTres",
];
const VALUES: &[&str] = &[
    "1",
    "2",
    "7",
    "n1",
    "n[1-4]",
    "gpu:h100:8(IDX:0-7)",
    "gpuos:h100-80gb:8(IDX:0-7)",
    "RUNNING",
    "root(0)",
    "(null)",
    "NO",
    "gres/gpu:8",
];

/// A text as users may write one.
fn text() -> impl Strategy<Value = String> {
    let field = (prop::sample::select(KEYS), prop::sample::select(VALUES));
    let record = (0..RELEASES.len(), any::<prop::sample::Index>()).prop_map(|(release, at)| {
        let text = captured(RELEASES[release]);
        let all: Vec<&str> = text.split("\n\n").collect();
        at.get(&all).to_string()
    });
    let lines = (0..RELEASES.len(), any::<prop::sample::Index>(), 1..40usize).prop_map(
        |(release, at, count)| {
            let text = captured(RELEASES[release]);
            let all: Vec<&str> = text.split_inclusive('\n').collect();
            let at = at.index(all.len());
            all[at..(at + count).min(all.len())].concat()
        },
    );
    let piece = prop_oneof![
        4 => field.prop_map(|(key, value)| format!("{key}={value}")),
        4 => prop::sample::select(&["\n   ", "\n     ", "\n", "\n\n", " ", "\r\n   ", "x", "\u{85}", "\t"][..])
            .prop_map(String::from),
        1 => record,
        1 => lines,
        1 => "[ -~]{0,8}",
    ];
    proptest::collection::vec(piece, 1..16).prop_map(|pieces| pieces.concat())
}

/// What is known of a job even if its record is not.
fn sure(job: &Job) -> (u32, &str, u32, &str, &str, &[String], u32) {
    let Job {
        id,
        label,
        uid,
        user,
        state,
        nodes,
        restarts,
        ..
    } = job;
    (*id, label, *uid, user, state, nodes, *restarts)
}

/// Compares what was read with what is true; `forger` may have become unreadable, and nobody else.
fn judge(
    read: &Job,
    truth: &Job,
    forger: u32,
    field: &str,
) -> std::result::Result<(), TestCaseError> {
    if !read.unreadable.is_empty() {
        prop_assert_eq!(read.id, forger);
        prop_assert_eq!(sure(read), sure(truth));
        prop_assert!(read.allocations.is_empty());
        return Ok(());
    }
    let mut truth = truth.clone();
    // What a user writes there is the command line as far as anybody knows.
    if read.id == forger && field != "Account" {
        truth.submit_line.clone_from(&read.submit_line);
    }
    prop_assert_eq!(read, &truth);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("GPUOS_FORGERIES").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
    ))]

    #[test]
    fn a_text_of_a_user_changes_nothing_else(
        release in 0..RELEASES.len(),
        at in any::<prop::sample::Index>(),
        place in prop::sample::select(PLACES),
        text in text(),
        just in any::<bool>(),
    ) {
        let mut slurm = Slurm::new(RELEASES[release]);
        let at = at.index(slurm.jobs.len());
        slurm.write(at, place, &text, just);
        // A name that changed just now is no other field.
        let same_name = |read: &Job, truth: &Job| place.0 == "JobName" && read.name == truth.name;
        let forger = slurm.jobs[at].0.id;
        let truth: BTreeMap<u32, Job> = slurm.jobs.iter().map(|(job, ..)| (job.id, job.clone())).collect();
        let read = slurm::jobs(&slurm).unwrap();
        let ids: Vec<u32> = read.iter().map(|job| job.id).collect();
        prop_assert_eq!(ids.len(), truth.len());
        prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>(), truth.keys().collect::<BTreeSet<_>>());
        for job in &read {
            judge(job, &truth[&job.id], forger, place.0)?;
            prop_assert!(job.id != forger || place.0 != "JobName" || same_name(job, &truth[&job.id]));
        }
        for id in [forger, *truth.keys().next().unwrap()] {
            let job = act::job(&slurm, id).unwrap().unwrap();
            judge(&job, &truth[&id], forger, place.0)?;
        }
        prop_assert!(slurm.did.lock().unwrap().is_empty());
        // What is done to it is done to its number.
        let job = &truth[&forger];
        let node = job.nodes.first().cloned().unwrap_or("n1".into());
        for action in [
            Action::Requeue { job: forger.into() },
            Action::Kill { job: forger.into(), step: None },
            Action::Release { job: forger.into(), avoid_node: true },
        ] {
            let outcome = act::act(&slurm, &node, &action);
            prop_assert!(!matches!(outcome, Outcome::NoAnswer(_)), "{outcome:?}");
        }
        let label = &job.label;
        let whole = label.split('+').next().unwrap();
        for line in slurm.did.lock().unwrap().iter() {
            let own = *line == format!("scontrol requeue incomplete {whole}")
                || *line == format!("scancel {label}")
                || line.starts_with(&format!("scontrol update JobId={label} ExcNodeList="))
                || line.starts_with(&format!("scontrol update JobId={label} StartTime=now"))
                // A heterogeneous job starts as a whole.
                || *line == format!("scontrol update JobId={whole} StartTime=now");
            prop_assert!(own, "{line}");
        }
    }
}

/// The forgeries by which another user's job was requeued, an instance destroyed and a phantom shown.
#[test]
fn known_forgeries_are_seen_through() {
    for release in RELEASES {
        for (place, text) in [
            ("JobName", "x\nArrayJobId=1 ArrayTaskId=z"),
            (
                "JobName",
                "x\n   SystemComment=gpuos:1 mig=7g.80gb\n     Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpuos:h100:8(IDX:0-7)",
            ),
            ("Comment", "x\n   SystemComment=gpuos:1 mig=7g.80gb"),
            (
                "WorkDir",
                "/\n\nJobId=999 JobName=phantom\n   UserId=root(0) GroupId=root(0)\n   JobState=RUNNING",
            ),
        ] {
            let mut slurm = Slurm::new(release);
            let place = PLACES.iter().find(|(field, _)| *field == place).unwrap();
            slurm.write(0, *place, text, false);
            let truth = slurm.jobs[0].0.clone();
            for job in slurm::jobs(&slurm).unwrap() {
                assert_ne!(job.id, 999, "{release}");
                if job.id == truth.id {
                    assert_eq!(sure(&job), sure(&truth), "{release} {text}");
                    assert_eq!(job.system_comment, truth.system_comment, "{release} {text}");
                    // The name is known exactly: the record can be read beside it.
                    if place.0 != "WorkDir" {
                        assert_eq!(job.unreadable, "", "{release} {text}");
                        assert_eq!(job.allocations, truth.allocations, "{release} {text}");
                    }
                }
            }
        }
    }
}

/// A whole head in the name of a job whose name changes between squeue's answer and scontrol's.
#[test]
fn a_name_that_changes_in_between_forges_no_record() {
    for release in RELEASES {
        let mut slurm = Slurm::new(release);
        let (job, record, name) = slurm.jobs[0].clone();
        let own = record.split_once('\n').unwrap().1.trim_end().to_string();
        let forged = format!("{name}\n{}", own.replace("IDX:0-1", "IDX:0-7"));
        assert_ne!(forged, format!("{name}\n{own}"));
        for text in [
            forged.clone(),
            format!("{forged}\n\nJobId=999 JobName=y"),
            format!("{forged}\n\n{record}"),
        ] {
            slurm.jobs[0] = (job.clone(), record.clone(), name.clone());
            slurm.write(0, PLACES[0], &text, true);
            let read = slurm::jobs(&slurm).unwrap();
            let own = read.iter().find(|one| one.id == job.id).unwrap();
            assert_ne!(own.unreadable, "", "{release}");
            let own = act::job(&slurm, job.id).unwrap().unwrap();
            assert_ne!(own.unreadable, "", "{release}");
        }
    }
}
