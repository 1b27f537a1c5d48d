//! Which jobs' checkpoints a node holds, as its `Extra` says in gpuos's marked part: the word `ckpt=JOB:GIB,JOB:GIB`, or
//! `ckpt=JOB:GIB,JOB:GIB,more` where it holds those of more jobs than it names.
//!
//! It is a hint where to look, nothing else: what is really there is known to the node alone, and is held against its digests. So what
//! cannot be read is left out, and nothing is concluded from what is not named.

use std::collections::BTreeMap;

use super::extra::{VERSION, next_part};

/// The word, without its `=`.
pub const KEY: &str = "ckpt";
/// Jobs that a node names at most, and that are read of a word: `Extra` is in slurmctld's memory for each node. Own choice.
pub const MOST: usize = 16;
/// The last entry of a list that leaves jobs out.
pub(super) const MORE: &str = "more";
/// Bytes of a word that are read: [`MOST`] entries of the largest numbers, the mark and the key.
const MAX_BYTES: usize = 5 + MOST * 22 + MORE.len();

/// A job whose checkpoints a node holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HeldJob {
    /// Slurm's number of the job, never 0.
    pub job: u32,
    /// What its checkpoints take on the node's disk, in GiB, rounded up.
    pub gib: u32,
}

impl HeldJob {
    /// A job whose checkpoints take so many bytes.
    pub fn of(job: u32, bytes: u64) -> HeldJob {
        let gib = u32::try_from(bytes.div_ceil(1 << 30)).unwrap_or(u32::MAX);
        HeldJob { job, gib }
    }
}

/// A job whose checkpoints a node holds, and may name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The job, and how much there is of it.
    pub held: HeldJob,
    /// Its user; `None`: that is not known.
    pub uid: Option<u32>,
    /// It has ended, so that it will not come back to what is there.
    pub is_over: bool,
}

/// The jobs that a node names of all whose checkpoints it holds, and whether it leaves any out. Those that can come back go first, and users take
/// turns, each with its largest: no user's jobs keep those of another from being named.
pub fn named(all: &[Candidate]) -> (Vec<HeldJob>, bool) {
    let mut all: Vec<&Candidate> = all.iter().filter(|one| one.held.job > 0).collect();
    all.sort_by_key(|one| (std::cmp::Reverse(one.held.gib), one.held.job));
    let mut turns: BTreeMap<(bool, Option<u32>), usize> = BTreeMap::new();
    let mut ranked: Vec<_> = all
        .into_iter()
        .map(|one| {
            let turn = turns.entry((one.is_over, one.uid)).or_default();
            *turn += 1;
            ((one.is_over, *turn), one.held)
        })
        .collect();
    // Stable: in a turn the larger one goes first.
    ranked.sort_by_key(|(rank, _)| *rank);
    let more = ranked.len() > MOST;
    (
        ranked
            .into_iter()
            .take(MOST)
            .map(|(_, held)| held)
            .collect(),
        more,
    )
}

/// Whether a whole `Extra` leaves jobs out of those that it names, or may: so do lists that are full, which earlier releases did not mark, and those of
/// which something cannot be read.
pub fn is_cut(extra: &str) -> bool {
    values(extra).into_iter().any(|value| {
        let entries = || value.split(',').filter(|entry| !entry.is_empty());
        value.len() > MAX_BYTES
            || entries().count() >= MOST
            || entries().any(|text| entry(text).is_none())
    })
}

/// The jobs that a whole `Extra` names, by their numbers, each once.
pub fn held(extra: &str) -> Vec<HeldJob> {
    let mut all = once(values(extra).into_iter().flat_map(read).collect());
    all.truncate(MOST);
    all
}

/// What stands behind the `=` of the words of a whole `Extra`.
fn values(extra: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = extra;
    while let Some((_, body, after)) = next_part(rest) {
        rest = after;
        let mut words = body.unwrap_or_default().split_ascii_whitespace();
        // Another version may mean something else by this word.
        if words.next() != Some(VERSION) {
            continue;
        }
        all.extend(words.filter_map(|word| word.strip_prefix(KEY)?.strip_prefix('=')));
    }
    all
}

/// What is behind the `=` of the word. Entries that are none, and those after the first [`MOST`], are left out.
pub fn read(value: &str) -> Vec<HeldJob> {
    let entries = value.get(..value.len().min(MAX_BYTES)).unwrap_or_default();
    // The last entry of a text that was cut may be another number.
    let entries = match entries.len() < value.len() {
        true => entries.rsplit_once(',').map_or("", |(whole, _)| whole),
        false => entries,
    };
    once(entries.split(',').filter_map(entry).take(MOST).collect())
}

/// The word for these jobs, the largest [`MOST`] of them, in the order of their numbers; `more`: there are others. `None`: there are none.
pub fn word(jobs: &[HeldJob], more: bool) -> Option<String> {
    let mut largest = once(jobs.iter().copied().filter(|held| held.job > 0).collect());
    largest.sort_by_key(|held| (std::cmp::Reverse(held.gib), held.job));
    let more = more || largest.len() > MOST;
    largest.truncate(MOST);
    largest.sort_unstable();
    let named = largest
        .iter()
        .map(|held| format!("{}:{}", held.job, held.gib));
    let entries: Vec<String> = named.chain(more.then(|| MORE.into())).collect();
    (!entries.is_empty()).then(|| format!("{KEY}={}", entries.join(",")))
}

fn entry(text: &str) -> Option<HeldJob> {
    let (job, gib) = text.split_once(':')?;
    let number = |text: &str| {
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse().ok()).flatten()
    };
    let (job, gib) = (number(job)?, number(gib)?);
    (job > 0).then_some(HeldJob { job, gib })
}

/// Each job once, with the larger of two sizes.
fn once(mut all: Vec<HeldJob>) -> Vec<HeldJob> {
    all.sort_by_key(|held| (held.job, std::cmp::Reverse(held.gib)));
    all.dedup_by_key(|held| held.job);
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn jobs(all: &[(u32, u32)]) -> Vec<HeldJob> {
        let held = all.iter().map(|(job, gib)| HeldJob {
            job: *job,
            gib: *gib,
        });
        held.collect()
    }

    #[test]
    fn the_word_is_read_out_of_extra() {
        let extra = "rack 7 [gpuos:1 out=2 ckpt=12:3,900:41 degraded=1] note";
        assert_eq!(held(extra), jobs(&[(12, 3), (900, 41)]));
        assert_eq!(held("rack 7 ckpt=12:3"), [], "not in gpuos's part");
        assert_eq!(held("[gpuos:2 1 ckpt=12:3]"), [], "another version");
        assert_eq!(held("[gpuos:1 ckpt=12:3"), [], "without its end");
        assert_eq!(held("[gpuos:1 xckpt=1:1 ckpt:2:2]"), []);
    }

    #[test]
    fn garbage_is_left_out_and_what_is_beside_it_is_not() {
        let value =
            "12:3,x:1,13,14:,:5,0:1,99999999999:1,15:99999999999,-1:2,+16:1,17:4,../18:1,17:2";
        assert_eq!(read(value), jobs(&[(12, 3), (17, 4)]));
        assert_eq!(read(""), []);
        let long: Vec<String> = (1..1000).map(|job| format!("{job}:1")).collect();
        assert_eq!(read(&long.join(",")).len(), MOST);
        let one = format!("{}:1", "1".repeat(4000));
        assert_eq!(read(&one), []);
    }

    #[test]
    fn the_largest_are_named() {
        let many: Vec<HeldJob> = (1..100).map(|job| HeldJob { job, gib: job }).collect();
        let text = word(&many, false).unwrap();
        let read = read(text.strip_prefix("ckpt=").unwrap());
        assert_eq!(read, many[99 - MOST..]);
        assert!(text.ends_with(",more"), "{text}");
        assert_eq!(word(&[], false), None);
    }

    #[test]
    fn a_list_that_leaves_jobs_out_says_so_and_one_that_may_counts_as_such() {
        let of = |value: &str| is_cut(&format!("rack [gpuos:1 out=1 ckpt={value}] 7"));
        assert!(!of("12:3,900:41") && !of("") && !is_cut("") && !is_cut("[gpuos:1 out=1]"));
        assert!(of("12:3,more") && of("12:3,x") && of("more"));
        let full: Vec<String> = (1..=MOST).map(|job| format!("{job}:1")).collect();
        assert!(of(&full.join(",")), "of a release that had no mark");
        let word = word(&jobs(&[(7, 2)]), true).unwrap();
        assert_eq!(word, "ckpt=7:2,more");
        assert_eq!(held(&format!("[gpuos:1 {word}]")), jobs(&[(7, 2)]));
    }

    #[test]
    fn jobs_that_can_come_back_go_first_and_users_take_turns() {
        let candidate = |job, gib, uid, is_over| Candidate {
            held: HeldJob { job, gib },
            uid: Some(uid),
            is_over,
        };
        let mut all: Vec<Candidate> = (100..140)
            .map(|job| candidate(job, 500, 66, true))
            .collect();
        all.extend((200..240).map(|job| candidate(job, 900, 77, false)));
        all.extend([
            candidate(7, 1, 1000, false),
            candidate(8, 1, 1000, false),
            candidate(9, 1, 1001, true),
        ]);
        let (named, more) = named(&all);
        let numbers: Vec<u32> = named.iter().map(|held| held.job).collect();
        assert!(more && numbers.len() == MOST);
        assert_eq!(numbers[..4], [200, 7, 201, 8]);
        assert!(numbers.iter().all(|job| *job >= 200 || *job < 9));
        let (few, more) = super::named(&all[80..]);
        assert_eq!(
            (few.len(), more),
            (3, false),
            "ended ones where there is room"
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(all in proptest::collection::btree_map(1u32.., 0u32.., 0..=MOST)) {
            let all: Vec<HeldJob> = all.into_iter().map(|(job, gib)| HeldJob { job, gib }).collect();
            let word = word(&all, false).unwrap_or_default();
            prop_assert_eq!(held(&format!("[gpuos:1 {word}]")), all.clone());
            prop_assert_eq!(held(&format!("a [gpuos:1 out=1 {word} x=1] b")), all);
        }

        #[test]
        fn any_text_is_read(text in ".*") {
            prop_assert!(held(&text).len() <= MOST);
            prop_assert!(read(&text).len() <= MOST);
        }
    }
}
