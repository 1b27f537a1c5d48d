//! Crashes and failures at every call of the file system: the checkpoint before stays, or the new one is complete.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use gpuos_checkpoint::manifest::Manifest;
use gpuos_store::coding::Coding;
use gpuos_store::disk::Disk;
use gpuos_store::error::{Kind, Result};
use gpuos_store::fake::{FakeDisk, Open, Trouble};
use gpuos_store::ingest::Limits;
use gpuos_store::job::JobStore;
use gpuos_store::owned::Owner;
use gpuos_store::restore::{Target, restore};
use gpuos_store::store::Store;
use gpuos_store::verify::verify;
use rustix::io::Errno;

use crate::support::*;

type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// What the program has when it takes checkpoint `number`: one file stays, one grows, one is new each time.
fn files(number: u32) -> Files {
    let changing = noise(u64::from(number), EXTENT + 100 * number as usize);
    Files::from([
        (b"same".to_vec(), noise(50, 2 * EXTENT + 1)),
        (b"changing".to_vec(), changing),
        (
            format!("only-{number}").into_bytes(),
            vec![number as u8; 10],
        ),
    ])
}

fn program(number: u32) -> FakeDisk {
    let disk = FakeDisk::new(7);
    for (name, bytes) in files(number) {
        let file = disk.create(&disk.root(), &name).unwrap();
        disk.write_at(&file, &bytes, 0).unwrap();
    }
    disk
}

fn take(
    job: &JobStore<'_, FakeDisk>,
    number: u32,
    previous: Option<&Manifest>,
) -> Result<Manifest> {
    let program = program(number);
    let manifest = write(job, id(number, 5), &program, &program.root(), previous)?;
    job.commit(manifest.id)?;
    Ok(manifest)
}

fn open(disk: &FakeDisk) -> Store<FakeDisk> {
    opened(disk.clone(), disk.root()).unwrap().0
}

/// A store in which checkpoint 1 is current.
fn begun() -> FakeDisk {
    static BEGUN: Mutex<Vec<(Coding, FakeDisk)>> = Mutex::new(Vec::new());
    let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, disk)) = begun.iter().find(|(of, _)| *of == form()) {
        return disk.fork();
    }
    let disk = FakeDisk::new(0);
    let store = open(&disk);
    take(&store.job(&job(7), 7).unwrap(), 1, None).unwrap();
    disk.trouble(Trouble::None);
    begun.push((form(), disk.fork()));
    disk
}

/// Takes 2, removes 1, takes 3, and begins 4, which is abandoned. `committed` is what returned without a failure.
fn go_on(disk: &FakeDisk, committed: &mut u32) -> Result<()> {
    let (store, _) = opened(disk.clone(), disk.root())?;
    let job = store.job(&job(7), 7)?;
    let first = job.manifest(id(1, 5))?;
    let second = take(&job, 2, Some(&first))?;
    *committed = 2;
    job.remove(id(1, 5))?;
    take(&job, 3, Some(&second))?;
    *committed = 3;
    let program = program(4);
    write(&job, id(4, 5), &program, &program.root(), None)?;
    job.remove(id(4, 5))?;
    job.remove(id(2, 5))
}

fn restored(job: &JobStore<'_, FakeDisk>, manifest: &Manifest) -> Files {
    let disk = FakeDisk::new(7);
    let root = disk.root();
    let target = Target {
        disk: &disk,
        folder: &root,
        name: b"it",
        owner: None,
    };
    restore(job, manifest, &target).unwrap();
    contents(&disk, &disk.open_folder(&root, b"it").unwrap()).unwrap()
}

fn contents(disk: &FakeDisk, folder: &Open) -> io::Result<Files> {
    let mut files = Files::new();
    for name in disk.list(folder, 1000)? {
        let file = disk.open(folder, &name)?;
        let mut bytes = vec![0; disk.facts(&file)?.size as usize];
        assert_eq!(disk.read_at(&file, &mut bytes, 0)?, bytes.len());
        files.insert(name, bytes);
    }
    Ok(files)
}

/// The current checkpoint is complete and is what the program had then, and the store can be used.
fn assert_sound(disk: &FakeDisk, committed: u32, what: &str) {
    let (store, found) = opened(disk.clone(), disk.root()).unwrap();
    assert_eq!(found.faults, Vec::<String>::new(), "{what}");
    let store_job = store.job(&job(7), 7).unwrap();
    let current = store_job.current().unwrap().expect(what);
    assert!(
        (committed..=committed + 1).contains(&current.number),
        "{what}: {current}"
    );
    assert_eq!(verify(&store_job, current).unwrap(), [], "{what}");
    let manifest = store_job.manifest(current).unwrap();
    assert_eq!(
        restored(&store_job, &manifest),
        files(current.number),
        "{what}"
    );
    // What is prepared is complete, too, also if it was never committed.
    for held in store_job.list().unwrap() {
        assert_eq!(held.faults, Vec::<String>::new(), "{what}");
        if let Ok(manifest) = store_job.manifest(held.id) {
            assert_eq!(verify(&store_job, held.id).unwrap(), [], "{what}");
            assert_eq!(restored(&store_job, &manifest), files(held.id.number));
        }
    }
    take(&store_job, 9, Some(&manifest)).unwrap();
    for held in store_job.list().unwrap() {
        if held.id.number != 9 {
            store_job.remove(held.id).unwrap();
        }
    }
    assert_eq!(verify(&store_job, id(9, 5)).unwrap(), [], "{what}");
    let (_, found) = opened(disk.clone(), disk.root()).unwrap();
    assert_eq!(found, Default::default(), "{what}");
}

fn calls() -> u64 {
    let disk = begun();
    let mut committed = 1;
    go_on(&disk, &mut committed).unwrap();
    disk.calls()
}

#[test]
fn after_a_crash_at_any_call_the_old_or_the_new_checkpoint_is_current_and_complete() {
    in_forms(&FORMS, |form| {
        let seeds = match (long(), form == PLAIN) {
            (true, _) => 100,
            (false, true) => 3,
            (false, false) => 1,
        };
        for at in 0..calls() {
            for seed in 0..seeds {
                let disk = begun();
                let mut committed = 1;
                disk.trouble(Trouble::Crash { at });
                assert!(go_on(&disk, &mut committed).is_err());
                disk.reboot(seed * 1000 + at);
                assert_sound(
                    &disk,
                    committed,
                    &format!("{form:?}, call {at}, seed {seed}"),
                );
            }
        }
    });
}

/// A crash in what cleans up after a crash.
#[test]
fn a_crash_while_the_store_is_opened_after_a_crash_loses_nothing() {
    let step = if long() { 1 } else { 31 };
    for at in (0..calls()).step_by(step) {
        for second in 0..40 {
            let disk = begun();
            let mut committed = 1;
            disk.trouble(Trouble::Crash { at });
            assert!(go_on(&disk, &mut committed).is_err());
            disk.reboot(at);
            disk.trouble(Trouble::Crash { at: second });
            let opened = opened(disk.clone(), disk.root());
            let went_well = opened.is_ok_and(|(_, found)| found.faults.is_empty());
            disk.reboot(at + second);
            assert_sound(&disk, committed, &format!("calls {at} and {second}"));
            if went_well {
                break;
            }
        }
    }
}

/// The first checkpoint of the first job: nothing is there, or all of it.
#[test]
fn after_a_crash_in_the_first_checkpoint_there_is_none_or_a_complete_one() {
    for at in 0.. {
        for seed in 0..if long() { 200 } else { 10 } {
            let disk = FakeDisk::new(0);
            disk.trouble(Trouble::Crash { at });
            let taken = opened(disk.clone(), disk.root())
                .and_then(|(store, _)| take(&store.job(&job(7), 7)?, 1, None));
            if taken.is_ok() {
                return;
            }
            disk.reboot(seed);
            let (store, found) = opened(disk.clone(), disk.root()).unwrap();
            assert_eq!(found.faults, Vec::<String>::new(), "call {at}, seed {seed}");
            let store_job = store.job(&job(7), 7).unwrap();
            let current = store_job.current().unwrap();
            assert!(current.is_none_or(|current| verify(&store_job, current) == Ok(vec![])));
            take(&store_job, 2, None).unwrap();
        }
    }
}

/// Extents that are long enough to be on their way to the disk several at a time, in any order.
fn take_long(job: &JobStore<'_, FakeDisk>, number: u32) -> Result<Manifest> {
    const LONG: usize = 256 << 10;
    let program = FakeDisk::new(7);
    for nth in 0..5 {
        let file = program.create(&program.root(), &[b'a' + nth]).unwrap();
        let bytes = noise(u64::from(number) * 10 + u64::from(nth), 2 * LONG + 100);
        program.write_at(&file, &bytes, 0).unwrap();
    }
    let limits = Limits {
        extent: LONG as u32,
        ..Limits::default()
    };
    let draft = job.ingest(
        &new(id(number, 5)),
        &program,
        &program.root(),
        &limits,
        None,
    )?;
    let manifest = job.prepare(draft, alone())?.0;
    job.commit(manifest.id)?;
    Ok(manifest)
}

#[test]
fn a_crash_while_long_extents_are_written_in_any_order_leaves_none_or_a_complete_checkpoint() {
    in_forms(&FORMS, |form| {
        let every = long() || form == PLAIN;
        crash_while_long_extents_are_written(if every { 1 } else { 9 });
    });
}

fn crash_while_long_extents_are_written(step: usize) {
    for at in (0..).step_by(step) {
        let disk = begun();
        let store = open(&disk);
        let job_store = store.job(&job(7), 7).unwrap();
        disk.trouble(Trouble::Crash { at });
        let taken = take_long(&job_store, 2);
        let calls = disk.calls();
        disk.reboot(at);
        let (store, found) = opened(disk.clone(), disk.root()).unwrap();
        assert_eq!(found.faults, Vec::<String>::new(), "call {at}");
        let job_store = store.job(&job(7), 7).unwrap();
        let current = job_store.current().unwrap().unwrap();
        assert_eq!(verify(&job_store, current).unwrap(), [], "call {at}");
        if taken.is_ok() {
            assert_eq!(current, id(2, 5));
            assert!(
                (calls..calls + step as u64).contains(&at),
                "{calls} calls, {at}"
            );
            return;
        }
        for held in job_store.list().unwrap() {
            assert_eq!(held.faults, Vec::<String>::new(), "call {at}");
        }
    }
}

#[test]
fn an_error_of_a_write_that_was_on_its_way_fails_the_checkpoint() {
    for at in 0.. {
        let disk = begun();
        let store = open(&disk);
        let job_store = store.job(&job(7), 7).unwrap();
        let errno = Errno::IO;
        disk.trouble(Trouble::Fail { at, errno });
        let taken = take_long(&job_store, 2);
        if disk.calls() <= at {
            return taken.map(drop).unwrap();
        }
        disk.trouble(Trouble::None);
        if let Ok(manifest) = &taken {
            // A call that may fail, as one that looks whether something is there.
            assert_eq!(verify(&job_store, manifest.id).unwrap(), [], "call {at}");
        }
    }
}

fn removed(store: &Store<FakeDisk>) -> Result<()> {
    let owned = store.owned(&job(7), Owner::user(7))?;
    owned.map_or(Ok(()), |owned| owned.remove().map(drop))
}

#[test]
fn a_job_is_removed_as_a_whole_after_a_crash_at_any_call() {
    for at in 0.. {
        let disk = begun();
        let store = open(&disk);
        disk.trouble(Trouble::Crash { at });
        if removed(&store).is_ok() {
            assert_eq!(disk.calls(), at);
            return;
        }
        disk.reboot(at);
        // What is left may be told of, is never current when its note is gone, and goes with another call.
        let (store, _) = opened(disk.clone(), disk.root()).unwrap();
        if let Ok(store_job) = store.existing(&job(7))
            && let Some(current) = store_job.current().unwrap()
        {
            assert_eq!(verify(&store_job, current).unwrap(), []);
        }
        removed(&store).unwrap();
        assert_eq!(store.jobs().unwrap(), []);
    }
}

/// What a failure leaves: the store is used on in the same process, as nothing crashed.
fn assert_goes_on(disk: &FakeDisk, committed: u32, what: &str) {
    disk.trouble(Trouble::None);
    let store_job = open(disk);
    let store_job = store_job.job(&job(7), 7).unwrap();
    let current = store_job.current().unwrap().expect(what);
    assert!(
        (committed..=committed + 1).contains(&current.number),
        "{what}"
    );
    assert_sound(disk, committed, what);
}

#[test]
fn after_an_error_of_any_call_the_checkpoint_before_stays_and_the_sentence_says_what_was_tried() {
    for at in 0..calls() {
        let all = [Errno::IO, Errno::NOSPC, Errno::ROFS];
        // In the daily round one of them each, in turn.
        let skipped = if long() { 0 } else { at as usize % 3 };
        let errnos = all.into_iter().skip(skipped);
        for errno in errnos.take(if long() { 3 } else { 1 }) {
            let troubles = [Trouble::Fail { at, errno }, Trouble::ReadOnly { at }];
            for trouble in troubles.into_iter().take(if at % 4 == 0 { 2 } else { 1 }) {
                let disk = begun();
                let mut committed = 1;
                disk.trouble(trouble);
                let done = go_on(&disk, &mut committed);
                let what = format!("{trouble:?}");
                if let Err(error) = done {
                    let said = error.to_string();
                    assert!(said.starts_with("cannot ") && said.contains("; "), "{said}");
                    let about = ["checkpoint", "job 7", "program"];
                    assert!(about.iter().any(|word| said.contains(word)), "{said}");
                    let full = error.kind == Kind::Full;
                    assert!(!full || errno == Errno::NOSPC, "{said}");
                }
                assert_goes_on(&disk, committed, &what);
            }
        }
    }
}

#[test]
fn a_disk_that_becomes_full_keeps_the_checkpoint_before() {
    in_forms(&FORMS, |form| {
        for after in (0..60_000).step_by(1_111) {
            let disk = begun();
            let mut committed = 1;
            disk.trouble(Trouble::Full { after });
            if let Err(error) = go_on(&disk, &mut committed) {
                assert_eq!(error.kind, Kind::Full, "{error}");
                assert!(error.to_string().contains("free space"), "{error}");
            }
            assert_goes_on(&disk, committed, &format!("{form:?}, full after {after}"));
        }
    });
}
