//! `scontrol -d show job` without trust in what stands between its lines.
//!
//! Slurm prints users' texts as they are: a job's name, account, working directory or command line may hold whole
//! lines, even whole records. But Slurm also prints its own lines, always and in one order, and no user can take
//! them away. So only the head of a record is read, from its first line to that of `Network=`, which has all that
//! Slurm alone knows; each line has to be the one that is due, and a key that stands there twice, or again anywhere
//! behind, makes the record unreadable. What follows the head is text of users.

use super::rows::{Kind, Row};
use super::text::Record;

/// Lines of the head in their order: the key that a line starts with, the others on it (those with `?` are not always
/// there), and whether Slurm always prints it. Read in Slurm's source (`slurm_sprint_job_info`) from 22.05 to 26.05. A line that later releases may
/// add is passed over; nothing is read from it.
const HEAD: &[(&str, &[&str], bool)] = &[
    ("SLUID", &[], false),
    ("HetJobIdSet", &[], false),
    ("UserId", &["GroupId", "MCS_label"], true),
    ("Priority", &["Nice", "Account", "QOS", "?WCKey"], true),
    ("JobState", &["Reason", "?FailedNode", "Dependency"], true),
    (
        "Requeue",
        &["Restarts", "BatchFlag", "Reboot", "ExitCode"],
        true,
    ),
    ("DerivedExitCode", &[], false),
    ("RunTime", &["TimeLimit", "TimeMin"], true),
    ("SubmitTime", &["EligibleTime"], true),
    ("AccrueTime", &[], false),
    ("ResizeTime", &[], false),
    ("StartTime", &["EndTime", "Deadline"], true),
    ("CronJob", &["CrontabSpec"], false),
    ("CrontabSpec", &[], false),
    ("PreemptEligibleTime", &["PreemptTime"], false),
    (
        "SuspendTime",
        &["SecsPreSuspend", "LastSchedEval", "Scheduler"],
        true,
    ),
    ("Partition", &["AllocNode:Sid"], true),
    ("ReqNodeList", &["ExcNodeList"], true),
    ("NodeList", &["?SchedNodeList"], true),
    ("BatchFeatures", &["?BatchHost"], false),
    ("BatchHost", &[], false),
    ("StepMgrEnabled", &[], false),
    (
        "FedOrigin",
        &["FedViableSiblings", "FedActiveSiblings"],
        false,
    ),
    (
        "NumNodes",
        &["NumCPUs", "NumTasks", "CPUs/Task", "ReqB:S:C:T"],
        true,
    ),
    ("TRES", &[], false),
    ("ReqTRES", &[], false),
    ("AllocTRES", &[], false),
    (
        "Socks/Node",
        &["NtasksPerN:B:S:C", "?CoreSpec", "?ThreadSpec"],
        true,
    ),
    ("JOB_GRES", &[], false),
    (DETAIL, &["CPU_IDs", "Mem", "GRES"], false),
    (
        "MinCPUsNode",
        &[
            "?MinMemoryCPU",
            "?MinMemoryNode",
            "?MinMemoryTRES",
            "MinTmpDiskNode",
            "?MemUpdate",
        ],
        true,
    ),
    ("Features", &["DelayBoot"], true),
    ("ClusterFeatures", &[], false),
    ("Prefer", &[], false),
    ("Reservation", &[], false),
    (
        "OverSubscribe",
        &[
            "?Exclusive",
            "Contiguous",
            "Licenses",
            "?LicensesAlloc",
            "Network",
        ],
        true,
    ),
];

/// What a job has on some nodes: the only line that comes more than once, indented further than the others.
const DETAIL: &str = "Nodes";

/// Fields that squeue gives exactly. In the text they stand where only a line of Slurm's that is not always there
/// tells them from a user's.
const OF_SQUEUE: &[&str] = &["Reservation", "Features", "Licenses"];

/// The record of the job of this row, which `text` starts with; what is asked for of a user's texts comes from the row.
///
/// # Errors
/// The text is not what Slurm alone would have written: where, in words.
pub(super) fn head(text: &str, row: &Row) -> Result<Record, String> {
    let mut record = Record::default();
    let rest = text.strip_prefix(&first_line(row)[..]);
    let rest = rest.ok_or("its record does not start with its numbers")?;
    record.push("JobId", &row.id.to_string());
    match &row.kind {
        Kind::Plain => {}
        Kind::Array(array, tasks) => {
            record.push("ArrayJobId", &array.to_string());
            record.push("ArrayTaskId", tasks);
        }
        Kind::Het(job, offset) => {
            record.push("HetJobId", &job.to_string());
            record.push("HetJobOffset", &offset.to_string());
        }
    }
    record.push("JobName", &row.name);
    // After a task's numbers the throttle of its array may stand.
    let rest = match rest.strip_prefix("ArrayTaskThrottle=") {
        Some(rest) if matches!(row.kind, Kind::Array(..)) => {
            let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            digits
                .strip_prefix(' ')
                .ok_or("its throttle is no number")?
        }
        _ => rest,
    };
    let rest = rest
        .strip_prefix("JobName=")
        .and_then(|rest| rest.strip_prefix(&row.name[..]))
        .and_then(|rest| rest.strip_prefix('\n'))
        .ok_or("its name is another one than squeue's, or just changed")?;
    let mut due = 0;
    let mut lines = rest.split('\n');
    loop {
        let line = lines.next().ok_or("its record ends too early")?;
        let at = place(line)?;
        let Some(at) = at else {
            continue;
        };
        let (key, others, _) = HEAD[at];
        let again = key == DETAIL && at + 1 == due;
        if at < due && !again {
            return Err(format!("{key}= stands where it does not belong"));
        }
        if let Some((missing, ..)) = HEAD[due.min(at)..at].iter().find(|(_, _, always)| *always) {
            return Err(format!("{missing}= is missing before {key}="));
        }
        fields(line.trim_start(), key, others, &mut record)?;
        due = at + 1;
        if due == HEAD.len() {
            break;
        }
    }
    // Before a forged head nothing of Slurm's own can stand, and behind it all of it does.
    for line in lines {
        let indented = line.strip_prefix("   ").map(str::trim_start);
        let key = indented.and_then(|line| line.split_once('='));
        if let Some((key, _)) = key
            && HEAD
                .iter()
                .any(|(known, _, always)| *always && *known == key)
        {
            return Err(format!("{key}= stands in it twice"));
        }
    }
    for (key, value) in &row.fields {
        record.set(key, value);
    }
    Ok(record)
}

/// How the record of a job starts, up to its name.
fn first_line(row: &Row) -> String {
    let id = row.id;
    match &row.kind {
        Kind::Plain => format!("JobId={id} "),
        Kind::Array(array, tasks) => format!("JobId={id} ArrayJobId={array} ArrayTaskId={tasks} "),
        Kind::Het(job, offset) => format!("JobId={id} HetJobId={job} HetJobOffset={offset} "),
    }
}

/// Which line of the head this is; `None`: one that no release so far prints.
fn place(line: &str) -> Result<Option<usize>, String> {
    let shown = || {
        line.chars()
            .take(40)
            .collect::<String>()
            .escape_debug()
            .to_string()
    };
    let indented = line
        .strip_prefix("   ")
        .ok_or_else(|| format!("the line \"{}\" is not one of Slurm's", shown()))?;
    let detail = indented.strip_prefix("  ");
    let (key, _) = detail
        .unwrap_or(indented)
        .split_once('=')
        .filter(|(key, _)| !key.is_empty() && !key.contains(' '))
        .ok_or_else(|| format!("the line \"{}\" is not one of Slurm's", shown()))?;
    let at = HEAD.iter().position(|(known, ..)| *known == key);
    match (at, detail.is_some()) {
        (Some(at), indented) if indented == (key == DETAIL) => Ok(Some(at)),
        // A user's text that ends a line of Slurm's may have the rest of it here.
        (None, false) if !has_known(indented) => Ok(None),
        _ => Err(format!("{key}= stands where it does not belong")),
    }
}

/// Whether any word of a line is a key of the head.
fn has_known(line: &str) -> bool {
    let keys = line.split(' ').filter_map(|word| word.split_once('='));
    keys.map(|(key, _)| key).any(|key| {
        let other = |other: &&str| other.trim_start_matches('?') == key;
        HEAD.iter()
            .any(|(first, others, _)| *first == key || others.iter().any(other))
    })
}

/// The fields of a line that starts with `key`. Each of the others stands there once at most, in their order.
fn fields(line: &str, key: &str, others: &[&str], record: &mut Record) -> Result<(), String> {
    let mut found: Vec<(usize, usize, &str)> = vec![(0, key.len() + 1, key)];
    for other in others {
        let optional = other.starts_with('?');
        let other = other.trim_start_matches('?');
        let word = format!(" {other}=");
        let mut places = line.match_indices(&word);
        let place = places.next();
        if place.is_none() && !optional {
            return Err(format!("{other}= is missing behind {key}="));
        }
        if let Some((at, _)) = place {
            if places.next().is_some() || found.last().is_some_and(|(_, last, _)| at < *last) {
                return Err(format!("{other}= stands where it does not belong"));
            }
            found.push((at, at + word.len(), other));
        }
    }
    if line.contains(&format!(" {key}=")) {
        return Err(format!("{key}= stands where it does not belong"));
    }
    for (n, (_, start, key)) in found.iter().enumerate() {
        let end = found.get(n + 1).map_or(line.len(), |(next, ..)| *next);
        if !OF_SQUEUE.contains(key) {
            record.push(key, &line[*start..end]);
        }
    }
    Ok(())
}

/// Where in `text` a line says that the record of a job starts, and of which.
pub(super) fn starts(text: &str) -> Vec<(usize, Option<u32>)> {
    let mut all = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if let Some(rest) = line.strip_prefix("JobId=") {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            all.push((at, rest[..digits].parse().ok()));
        }
        at += line.len();
    }
    all
}
