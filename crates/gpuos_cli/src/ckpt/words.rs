//! Times, sizes and phases for people.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpuos_core::wire::{CheckpointJob, CheckpointMaking, CheckpointPhase, CheckpointRefused};
use gpuos_host::Machine;
use gpuos_model::screen::line;

/// How long the list of users may take: it may come from a directory service.
const PATIENCE: Duration = Duration::from_secs(5);

/// What stands for nothing in a table.
pub const NONE: &str = "-";

/// `42 s`, `10 min`, `36 h`, `3 d`: whole units, rounded down.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// `980 ms`, then as [`span`].
pub fn span_ms(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{}.{} s", ms / 1000, ms / 100 % 10),
        _ => span(ms / 1000),
    }
}

/// `512 B`, `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    for next in units {
        // What would be shown as 1024.0 belongs to the next unit.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Seconds since 1970, UTC.
pub fn clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Numbers as ranges: `0-3,6`.
pub fn ranges(numbers: impl IntoIterator<Item = u32>) -> String {
    let numbers: BTreeSet<u32> = numbers.into_iter().collect();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = runs.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(",")
}

/// So many nodes in a set of the scheme; `None`: the scheme is not known here.
fn set(scheme: &str) -> Option<u32> {
    if scheme == "partner" {
        return Some(2);
    }
    let (name, numbers) = scheme.split_once(':')?;
    match (name, numbers.split_once('+')) {
        ("xor", None) => numbers.parse().ok(),
        ("rs", Some((data, parity))) => {
            let (data, parity): (u32, u32) = (data.parse().ok()?, parity.parse().ok()?);
            data.checked_add(parity)
        }
        _ => None,
    }
}

/// What can be lost, for a column: `1 of 2`, `2 of 8`.
pub fn survives(job: &CheckpointJob) -> String {
    match (job.losses, set(&job.scheme)) {
        (0, _) => NONE.into(),
        (losses, Some(nodes)) => format!("{losses} of {nodes}"),
        (losses, None) => format!("{losses} a set"),
    }
}

/// The same as a sentence. Of a job that does not run, and of one whose nodes have not found each other, no scheme is known.
pub fn survives_sentence(job: &CheckpointJob) -> String {
    if job.scheme.is_empty() && job.losses == 0 {
        return match job.phase {
            CheckpointPhase::Left => {
                "which nodes may be lost shows when it starts again: a node tells of a job that has ended what itself has kept".into()
            }
            _ => "which nodes can be lost is known once the job's nodes have found each other".into(),
        };
    }
    let scheme = match job.scheme.is_empty() {
        true => String::new(),
        false => format!(" ({})", job.scheme),
    };
    let of = match set(&job.scheme) {
        Some(2) => "each pair".into(),
        Some(nodes) => format!("each set of {nodes}"),
        None => "each set".into(),
    };
    match job.losses {
        0 => format!("no node can be lost: each keeps its own part only{scheme}"),
        1 => format!("any 1 node of {of} can be lost, and its part is made again{scheme}"),
        many => {
            format!("any {many} nodes of {of} can be lost, and their parts are made again{scheme}")
        }
    }
}

/// That what the program saves is not stored; `None`: the newest that it was asked for exists, or none was asked for.
pub fn failing(job: &CheckpointJob) -> Option<String> {
    let why = line(&job.failed_why);
    match job.failed_in_row {
        0 => None,
        1 => Some(format!("the last one came to nothing: {why}")),
        more => Some(format!("the last {more} came to nothing, at last {why}")),
    }
}

/// The phase, as one word that programs know, too.
pub fn phase(phase: CheckpointPhase) -> &'static str {
    match phase {
        CheckpointPhase::Left => "left",
        CheckpointPhase::Gathering => "gathering",
        CheckpointPhase::Rebuilding => "rebuilding",
        CheckpointPhase::Running => "running",
        CheckpointPhase::Failed => "failed",
    }
}

/// What the phase means.
pub fn phase_sentence(phase: CheckpointPhase) -> &'static str {
    match phase {
        CheckpointPhase::Left => "the job does not run here, and what it left is kept for a time",
        CheckpointPhase::Gathering => "the movers of the job's nodes look for each other",
        CheckpointPhase::Rebuilding => "parts that were lost are made again",
        CheckpointPhase::Running => "checkpoints can be made",
        CheckpointPhase::Failed => "no checkpoints are made in this run",
    }
}

/// What a checkpoint that is being made waits for: `the program, ranks 1,3`.
pub fn waits(making: &CheckpointMaking) -> String {
    let what = match making.stage.as_str() {
        "program" => "the program's files".to_string(),
        "store" => "the nodes to store it".to_string(),
        other => other.to_string(),
    };
    match &making.waits_for[..] {
        [] => what,
        [one] => format!("{what}, rank {one}"),
        several => format!("{what}, ranks {}", ranges(several.iter().copied())),
    }
}

/// Why a checkpoint is made, to follow its number.
pub fn reason(making: &CheckpointMaking) -> String {
    match making.reason.as_str() {
        "interval" => "by the interval".into(),
        "asked" => "as asked for".into(),
        "end" => "before the job's end".into(),
        other => other.into(),
    }
}

/// Names of users by their numbers, where the system has them.
pub fn users(machine: &dyn Machine, uids: impl IntoIterator<Item = u32>) -> BTreeMap<u32, String> {
    let uids: BTreeSet<u32> = uids.into_iter().collect();
    let words: Vec<String> = uids.iter().map(u32::to_string).collect();
    let mut args = vec!["passwd"];
    args.extend(words.iter().map(String::as_str));
    // It ends with 2 where one is unknown, and has told the others.
    let output = match uids.is_empty() {
        true => return BTreeMap::new(),
        false => machine.run_within(PATIENCE, "getent", &args),
    };
    let text = output.map(|output| output.stdout).unwrap_or_default();
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let uid: u32 = fields.nth(1)?.parse().ok()?;
        uids.contains(&uid).then(|| (uid, name.to_string()))
    };
    text.lines().filter_map(user).collect()
}

/// Who could not load which checkpoints, as nodes tell: a sentence for each checkpoint, oldest first.
pub fn refused<'a>(jobs: impl IntoIterator<Item = &'a CheckpointJob>) -> Vec<String> {
    let kept = jobs.into_iter().flat_map(|job| &job.checkpoints);
    let marked = kept.filter_map(|kept| Some((kept.number, kept.refused.as_ref()?)));
    let all: BTreeMap<u32, &CheckpointRefused> = marked.collect();
    let sentence = |(number, by): (u32, &CheckpointRefused)| {
        let said = match by.said.is_empty() {
            true => String::new(),
            false => format!(": {}", line(&by.said)),
        };
        let (rank, node) = (by.rank, line(&by.node));
        format!("checkpoint {number} is refused by rank {rank} on {node}{said}")
    };
    all.into_iter().map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_short() {
        let spans = [0, 119, 120, 7199, 7200, 172_799, 172_800, 864_000].map(span);
        assert_eq!(
            spans,
            [
                "0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d", "10 d"
            ]
        );
        let spans = [999, 1000, 12_345, 59_999, 600_000].map(span_ms);
        assert_eq!(spans, ["999 ms", "1.0 s", "12.3 s", "59.9 s", "10 min"]);
        let gib = 1 << 30;
        let sizes = [0, 1023, 1024, (1 << 20) - 1, gib * 3 / 2, u64::MAX].map(size);
        assert_eq!(
            sizes,
            [
                "0 B",
                "1023 B",
                "1.0 KiB",
                "1.0 MiB",
                "1.5 GiB",
                "16384.0 PiB"
            ]
        );
    }

    #[test]
    fn ranks_are_told_as_ranges() {
        assert_eq!(ranges([]), "");
        assert_eq!(ranges([3, 1, 2, 7, 0, 7]), "0-3,7");
        assert_eq!(ranges([u32::MAX, u32::MAX - 1]), "4294967294-4294967295");
    }

    #[test]
    fn what_can_be_lost_is_told_by_the_scheme() {
        for (scheme, losses, short, part) in [
            ("single", 0, "-", "no node can be lost"),
            ("partner", 1, "1 of 2", "any 1 node of each pair"),
            ("xor:4", 1, "1 of 4", "any 1 node of each set of 4"),
            ("rs:6+2", 2, "2 of 8", "any 2 nodes of each set of 8"),
            ("rs:x", 2, "2 a set", "any 2 nodes of each set can"),
            (
                "rs:4294967295+1",
                1,
                "1 a set",
                "any 1 node of each set can",
            ),
        ] {
            let job = CheckpointJob {
                scheme: scheme.into(),
                losses,
                ..CheckpointJob::default()
            };
            assert_eq!(survives(&job), short);
            assert!(survives_sentence(&job).contains(part), "{scheme}");
        }
        // Nothing is said of what nobody knows.
        for (phase, part) in [
            (CheckpointPhase::Left, "shows when it starts again"),
            (
                CheckpointPhase::Gathering,
                "once the job's nodes have found each other",
            ),
        ] {
            let job = CheckpointJob {
                phase,
                ..CheckpointJob::default()
            };
            let said = survives_sentence(&job);
            assert!(said.contains(part) && !said.contains("no node"), "{said}");
        }
    }
}
