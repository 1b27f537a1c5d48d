//! A program that cannot load what it is given, on one node.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use gpuos_config::access::Forbidden;
use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_core::wire::{CheckpointJob, CheckpointRequest};
use tempfile::TempDir;

use crate::one::*;
use crate::support::{Base, is_root, join, names, owner, user};

fn uid() -> u32 {
    owner().0
}

struct Site(TempDir);

impl Site {
    fn new() -> Site {
        let site = Site(TempDir::new().unwrap());
        for name in ["store", "jobs", "later", "third", "fourth"] {
            fs::create_dir(site.0.path().join(name)).unwrap();
        }
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(site.0.path(), mode).unwrap();
        site
    }

    fn mover(&self, jobs: &str) -> Mover {
        let at = |name| self.0.path().join(name);
        let config = CheckpointConfig {
            enabled: true,
            least_s: 1,
            ..CheckpointConfig::default()
        };
        mover(&at("store"), &at(jobs), config, Forbidden::default())
    }
}

/// Who has refused which, as clients see it.
fn marks(shown: &CheckpointJob) -> Vec<(u32, String)> {
    let kept = shown.checkpoints.iter();
    let marks = kept.filter_map(|kept| Some((kept.number, kept.refused.clone()?)));
    let text = marks.map(|(number, by)| (number, format!("{} {} {}", by.rank, by.node, by.said)));
    text.collect()
}

/// All files below a folder, by their paths; `None`: one went meanwhile.
fn seen(folder: &Path) -> Option<BTreeMap<PathBuf, Vec<u8>>> {
    let mut all = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(path) = open.pop() {
        match fs::read_dir(&path) {
            Ok(entries) => open.extend(entries.flatten().map(|entry| entry.path())),
            Err(_) => drop(all.insert(path.clone(), fs::read(&path).ok()?)),
        }
    }
    Some(all)
}

/// The same once nobody works there any more.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    until("nothing changes there", || {
        let before = seen(folder)?;
        std::thread::sleep(std::time::Duration::from_millis(300));
        (seen(folder)? == before).then_some(before)
    })
}

/// Makes a checkpoint of a program in which nothing changes while it is asked for.
fn made(mover: &Mover, rank: &Rank, bytes: &[u8]) -> u32 {
    mover.ask(root(), CheckpointRequest::Now { job: 1.into() });
    let (number, outcome) = rank.checkpoint(bytes);
    assert_eq!(outcome, Ok(()));
    number
}

/// Job 1 on a node, whose program has begun anew and made two checkpoints.
struct Two {
    site: Site,
    mover: Mover,
    folder: PathBuf,
    rank: Rank,
    first: u32,
    second: u32,
}

impl Two {
    fn new() -> Two {
        let site = Site::new();
        let mover = site.mover("jobs");
        mover.runs(record(1, uid()));
        let folder = mover.step(1, uid(), "1h").unwrap();
        let (rank, told) = Rank::join(&folder, uid(), 1);
        assert_eq!(told, "new");
        assert_eq!(mover.shown(1).restored, None);
        let first = made(&mover, &rank, b"one");
        let second = made(&mover, &rank, b"two");
        Two {
            site,
            mover,
            folder,
            rank,
            first,
            second,
        }
    }
}

#[test]
fn what_a_rank_refuses_is_marked_and_the_one_before_is_taken_and_at_last_none() {
    let Two {
        site,
        mover,
        folder,
        first,
        second,
        rank: _in_the_first_start,
    } = Two::new();
    let (rank, told) = Rank::join(&folder, uid(), 2);
    assert_eq!(told, format!("restore {second}"));
    assert_eq!(fs::read(rank.restored().join("state")).unwrap(), b"two");
    rank.refuse("no layer 7\u{1b}[31m\nand more");
    let (rank, told) = Rank::join(&folder, uid(), 3);
    assert_eq!(told, format!("restore {first}"));
    assert_eq!(fs::read(rank.restored().join("state")).unwrap(), b"one");
    let shown = mover.until_shown(1, "it is told from which one it went on", |shown| {
        shown.restored == Some(first)
    });
    assert_eq!(
        marks(&shown),
        [(second, "0 n1 no layer 7 [31m".to_string())]
    );
    let passed = format!("checkpoint {second}: rank 0 on n1 could not load it and has refused it");
    assert_eq!(shown.passed_over, [passed]);
    assert!(!folder.join("ranks/refused.0.2").exists(), "it is removed");
    // The mark survives the run and the mover.
    drop(rank);
    let mover = site.mover("later");
    let mut again = record(1, uid());
    again.restarts = 1;
    mover.runs(again);
    let folder = mover.step(1, uid(), "1h").unwrap();
    let (rank, told) = Rank::join(&folder, uid(), 4);
    assert_eq!(told, format!("restore {first}"));
    rank.refuse("");
    let (_, told) = Rank::join(&folder, uid(), 5);
    assert!(
        told.starts_with("failed no checkpoint can be restored")
            && told.contains(&format!(
                "checkpoint {first}: rank 0 on n1 could not load it"
            )),
        "{told}"
    );
    mover.until_shown(1, "both are marked", |shown| {
        let marked = marks(shown).into_iter().map(|(of, _)| of);
        marked.eq([first, second])
    });
}

#[test]
fn a_program_goes_on_saving_after_a_refusal() {
    let two = Two::new();
    let (mover, folder) = (&two.mover, &two.folder);
    let (first, second) = (two.first, two.second);
    let (rank, _) = Rank::join(folder, uid(), 2);
    rank.refuse("x");
    let (rank, told) = Rank::join(folder, uid(), 3);
    assert_eq!(told, format!("restore {first}"));
    let third = made(mover, &rank, b"three");
    assert!(third > second, "numbers go on");
    let fourth = made(mover, &rank, b"four");
    let (rank, told) = Rank::join(folder, uid(), 4);
    assert_eq!(told, format!("restore {fourth}"));
    // What was saved of it since shows that it could be loaded.
    let fifth = made(mover, &rank, b"five");
    rank.refuse("too late");
    let (_, told) = Rank::join(folder, uid(), 5);
    assert_eq!(told, format!("restore {fifth}"));
    assert!(!marks(&mover.shown(1)).iter().any(|(of, _)| *of > second));
}

#[test]
fn what_a_job_refuses_of_another_one_is_passed_over_by_itself_alone() {
    let two = Two::new();
    let (site, first, second) = (&two.site, two.first, two.second);
    drop((two.mover, two.rank));
    let before = tree(&site.0.path().join("store/1"));
    // Another job of the user begins from it, with another program.
    let mover = site.mover("later");
    mover.runs(record(2, uid()));
    let folder = mover.step(2, uid(), "1h,restart=1").unwrap();
    let (rank, told) = Rank::join(&folder, uid(), 1);
    assert_eq!(told, format!("restore {second}"));
    rank.refuse("another layout");
    let (rank, told) = Rank::join(&folder, uid(), 2);
    assert_eq!(told, format!("restore {first}"));
    assert_eq!(fs::read(rank.restored().join("state")).unwrap(), b"one");
    drop(rank);
    // It remembers that in its next run.
    let mover = site.mover("third");
    let mut again = record(2, uid());
    again.restarts = 1;
    mover.runs(again);
    let folder = mover.step(2, uid(), "1h,restart=1").unwrap();
    let (rank, told) = Rank::join(&folder, uid(), 3);
    assert_eq!(told, format!("restore {first}"));
    rank.refuse("");
    let (_, told) = Rank::join(&folder, uid(), 4);
    assert!(
        told.starts_with("failed cannot begin from a checkpoint of job 1")
            && told.contains(&format!(
                "checkpoint {second}: rank 0 on n1 could not load it"
            )),
        "{told}"
    );
    // The other job has both as they were; since when it is over was noted beside them.
    let mut after = tree(&site.0.path().join("store/1"));
    after.remove(&site.0.path().join("store/1/over"));
    assert!(after == before);
    let mover = site.mover("fourth");
    let mut again = record(1, uid());
    again.restarts = 1;
    mover.runs(again);
    let folder = mover.step(1, uid(), "1h").unwrap();
    let (rank, told) = Rank::join(&folder, uid(), 5);
    assert_eq!(told, format!("restore {second}"));
    assert_eq!(fs::read(rank.restored().join("state")).unwrap(), b"two");
    assert_eq!(marks(&mover.shown(1)), []);
}

#[test]
fn files_that_were_put_away_make_the_checkpoint_fail_at_once() {
    let site = Site::new();
    let mover = site.mover("jobs");
    mover.runs(record(1, uid()));
    let folder = mover.step(1, uid(), "1h").unwrap();
    let (rank, _) = Rank::join(&folder, uid(), 1);
    mover.ask(root(), CheckpointRequest::Now { job: 1.into() });
    let number = rank.asked();
    user(
        &folder.join(number.to_string()),
        "mv files away; ln -s / files; touch ready.0",
    );
    let begun = std::time::Instant::now();
    let why = rank.outcome(number).unwrap_err();
    assert!(
        why.contains("cannot be read") && why.contains("place of their folder"),
        "{why}"
    );
    // Its time limit is 10 minutes.
    assert!(begun.elapsed().as_secs() < 60);
    made(&mover, &rank, b"x");
}

/// Whatever a user puts there is at most a refusal of his own.
#[test]
fn a_hostile_refusal_is_one_line_of_the_users_own_or_none() {
    let base = Base::new();
    let folder = base.folder();
    let ranks = folder.path().join("ranks");
    let secret = base.beside("secret");
    fs::write(&secret, "secret").unwrap();
    user(&ranks, "touch 0.6.1 1.6.1 2.6.1 3.6.1 4.6.1 5.6.1");
    for rank in 0..6 {
        folder.joins().unwrap();
        folder
            .answer(&join(rank, 6, 1), &format!("restore {}", rank + 1), 1)
            .unwrap();
    }
    let refused = || {
        folder.joins().unwrap();
        folder.refused().map(|it| (it.number, it.said))
    };
    assert_eq!(refused(), None);
    user(
        &ranks,
        "mkdir refused.5.1; mkfifo refused.4.1; touch refused.9.1 refused.0.2 refused..1 refused.00.1 refused.0.1.1",
    );
    symlink(&secret, ranks.join("refused.3.1")).unwrap();
    assert_eq!(refused(), None);
    user(&ranks, "head -c 3000000 /dev/zero > refused.0.1");
    let (number, said) = refused().unwrap();
    assert_eq!(number, 1);
    assert!(
        said.len() <= 200 && said.chars().all(|c| !c.is_control()),
        "{said:?}"
    );
    user(
        &ranks,
        "printf '\\377\\033]0;x\\007\\nsecond' > refused.1.1",
    );
    let (number, said) = refused().unwrap();
    assert_eq!(number, 2, "the newest counts");
    assert!(said.chars().all(|c| !c.is_control()), "{said:?}");
    if is_root() {
        // A link to another's file, where the kernel lets users make them.
        fs::hard_link(&secret, ranks.join("refused.2.1")).unwrap();
        assert_eq!(refused(), Some((3, String::new())));
    }
    // It goes with the join.
    user(&ranks, "touch 1.6.2");
    folder.joins().unwrap();
    folder.answer(&join(1, 6, 2), "restore 1", 2).unwrap();
    assert!(!names(&ranks).contains(&"refused.1.1".to_string()));
}
