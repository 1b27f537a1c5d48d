//! Parts that are drained to a file system of all nodes, and come back from there.

use std::collections::BTreeMap;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::{Manifest, NodeSet};
use gpuos_store::disk::Disk;
use gpuos_store::drained::{DrainedJob, DrainedStore};
use gpuos_store::error::{Error, Kind, Result};
use gpuos_store::fake::{FakeDisk, Open, Trouble};
use gpuos_store::job::{JobStore, New};
use gpuos_store::key::SiteKey;
use gpuos_store::owned::Owner;
use gpuos_store::restore::{Target, restore};
use gpuos_store::store::Store;
use gpuos_store::transfer::{Trust, copy_part};
use gpuos_store::verify::verify;

use crate::support::*;

pub(crate) const UID: u32 = 7;
pub(crate) const ZERO: NodeIndex = NodeIndex(0);
pub(crate) const ONE: NodeIndex = NodeIndex(1);

/// One file stays, one changes.
fn files(node: NodeIndex, number: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let seed = u64::from(node.0) * 1000;
    let own = seed + u64::from(number);
    BTreeMap::from([
        (b"same".to_vec(), noise(seed, 3 * EXTENT + 1)),
        (b"changing".to_vec(), noise(own, EXTENT + 100)),
    ])
}

fn program(node: NodeIndex, number: u32) -> FakeDisk {
    let disk = FakeDisk::new(UID);
    for (name, bytes) in files(node, number) {
        let file = disk.create(&disk.root(), &name).unwrap();
        disk.write_at(&file, &bytes, 0).unwrap();
    }
    disk
}

pub(crate) fn open(disk: &FakeDisk) -> Store<FakeDisk> {
    opened(disk.clone(), disk.root()).unwrap().0
}

fn shared(beside: &Store<FakeDisk>, disk: &FakeDisk) -> DrainedStore<FakeDisk> {
    DrainedStore::open(beside, disk.clone(), disk.root()).unwrap()
}

/// Takes and commits a checkpoint on a node of a job of two.
fn take(
    store: &JobStore<'_, FakeDisk>,
    node: NodeIndex,
    number: u32,
    previous: Option<&Manifest>,
) -> Manifest {
    let program = program(node, number);
    let new = New {
        id: id(number, 5),
        node,
        nodes: 2,
        time: 1_700_000_000,
    };
    let draft = store.ingest(&new, &program, &program.root(), &limits(), previous);
    let set = NodeSet {
        members: vec![node],
        parity: 0,
        chunk: 0,
    };
    let manifest = store.prepare(draft.unwrap(), set).unwrap().0;
    store.commit(manifest.id).unwrap();
    manifest
}

/// A node with so many checkpoints of job 7, each referring to those before.
pub(crate) fn node(node: NodeIndex, checkpoints: u32) -> FakeDisk {
    let disk = FakeDisk::new(0);
    let store = open(&disk);
    let store_job = store.job(&job(7), UID).unwrap();
    let mut previous = None;
    for number in 1..=checkpoints {
        previous = Some(take(&store_job, node, number, previous.as_ref()));
    }
    disk
}

fn free(_: u64) -> Result<()> {
    Ok(())
}

pub(crate) fn drain<D: Disk>(
    disk: &FakeDisk,
    far: &DrainedJob<'_, D>,
    node: NodeIndex,
    id: CheckpointId,
) -> Result<u64> {
    let store = open(disk);
    let own = store.existing(&job(7))?;
    copy_part(&own, &far.part(node)?, id, node, Trust::Length, &mut free)
}

pub(crate) fn fetch<D: Disk>(
    far: &DrainedJob<'_, D>,
    disk: &FakeDisk,
    node: NodeIndex,
    id: CheckpointId,
) -> Result<u64> {
    let store = open(disk);
    let own = store.job(&job(7), UID)?;
    copy_part(&far.part(node)?, &own, id, node, Trust::Content, &mut free)
}

/// The part of a node is here, holds, and has what its program had.
pub(crate) fn assert_whole(disk: &FakeDisk, node: NodeIndex, id: CheckpointId) {
    let store = open(disk);
    let own = store.existing(&job(7)).unwrap();
    assert_eq!(verify(&own, id).unwrap(), []);
    let files_of = FakeDisk::new(UID);
    let root = files_of.root();
    let target = Target {
        disk: &files_of,
        folder: &root,
        name: b"it",
        owner: None,
    };
    restore(&own, &own.manifest(id).unwrap(), &target).unwrap();
    let folder = files_of.open_folder(&root, b"it").unwrap();
    for (name, wanted) in files(node, id.number) {
        let file = files_of.open(&folder, &name).unwrap();
        let mut bytes = vec![0; files_of.facts(&file).unwrap().size as usize];
        files_of.read_at(&file, &mut bytes, 0).unwrap();
        assert_eq!(bytes, wanted);
    }
}

fn ids(far: &DrainedJob<'_, FakeDisk>) -> Vec<u32> {
    let complete = far.complete(100).unwrap();
    complete.iter().map(|it| it.id.number).collect()
}

/// A file beneath a folder, by its path.
fn at(disk: &FakeDisk, path: &str) -> (Open, Vec<u8>) {
    let mut folder = disk.root();
    let mut parts: Vec<&str> = path.split('/').collect();
    let name = parts.pop().unwrap();
    for part in parts {
        folder = disk.open_folder(&folder, part.as_bytes()).unwrap();
    }
    (folder, name.into())
}

fn bytes(disk: &FakeDisk, path: &str) -> Vec<u8> {
    let (folder, name) = at(disk, path);
    let file = disk.open(&folder, &name).unwrap();
    let mut bytes = vec![0; disk.facts(&file).unwrap().size as usize];
    disk.read_at(&file, &mut bytes, 0).unwrap();
    bytes
}

fn put(disk: &FakeDisk, path: &str, bytes: Vec<u8>) {
    let (folder, name) = at(disk, path);
    let file = disk.open(&folder, &name).unwrap();
    disk.damage(file, |now| *now = bytes);
}

fn segment(node: u16, number: u32) -> String {
    format!("7/node-{node}/{}/segment", id(number, 5))
}

fn manifest(node: u16, number: u32) -> String {
    format!("7/node-{node}/{}/manifest", id(number, 5))
}

#[test]
fn a_job_that_has_lost_all_its_nodes_comes_back_on_new_ones() {
    in_forms(&FORMS, |_| {
        a_job_that_has_lost_all_its_nodes_comes_back_on_new_ones_in_a_form()
    });
}

fn a_job_that_has_lost_all_its_nodes_comes_back_on_new_ones_in_a_form() {
    let nodes = [node(ZERO, 3), node(ONE, 3)];
    let far_disk = FakeDisk::new(0);
    let store = open(&nodes[0]);
    let far = shared(&store, &far_disk);
    assert!(far.existing(&job(7)).unwrap().is_none());
    let far_job = far.make(&job(7), UID).unwrap();
    drain(&nodes[0], &far_job, ZERO, id(3, 5)).unwrap();
    assert!(ids(&far_job).is_empty(), "one part is missing");
    drain(&nodes[1], &far_job, ONE, id(3, 5)).unwrap();
    // The earlier ones came along, as it refers to them.
    let complete = far_job.complete(1).unwrap();
    assert_eq!((complete[0].id, complete[0].sets.len()), (id(3, 5), 2));
    for (index, number) in [(ZERO, 0), (ONE, 1)] {
        let new = FakeDisk::new(0);
        let far_job = far.existing(&job(7)).unwrap().unwrap();
        assert_eq!(far_job.uid(), UID);
        assert!(
            fetch(&far_job, &new, index, id(3, 5)).unwrap() > 0,
            "{number}"
        );
        assert_whole(&new, index, id(3, 5));
        // Once more: nothing is left to do.
        assert_eq!(fetch(&far_job, &new, index, id(3, 5)), Ok(0));
    }
}

#[test]
fn what_is_there_is_not_copied_again_and_what_is_damaged_is() {
    in_forms(&FORMS, |_| {
        what_is_there_is_not_copied_again_and_what_is_damaged_is_in_a_form()
    });
}

fn what_is_there_is_not_copied_again_and_what_is_damaged_is_in_a_form() {
    let disk = node(ZERO, 2);
    let far_disk = FakeDisk::new(0);
    let store = open(&disk);
    let far = shared(&store, &far_disk);
    let far_job = far.make(&job(7), UID).unwrap();
    let first = drain(&disk, &far_job, ZERO, id(1, 5)).unwrap();
    let second = drain(&disk, &far_job, ZERO, id(2, 5)).unwrap();
    assert!(second < first, "{first} {second}");
    let new = FakeDisk::new(0);
    fetch(&far_job, &new, ZERO, id(2, 5)).unwrap();
    let name = format!("7/{}/segment", id(1, 5));
    let mut damaged = bytes(&new, &name);
    damaged[5] ^= 1;
    put(&new, &name, damaged);
    assert_eq!(fetch(&far_job, &new, ZERO, id(2, 5)), Ok(first));
    assert_whole(&new, ZERO, id(2, 5));
}

#[test]
fn a_copy_that_was_cut_short_is_none_and_goes_on_where_it_ended() {
    let disk = node(ZERO, 3);
    let store = open(&disk);
    let own = store.existing(&job(7)).unwrap();
    let far_disk = FakeDisk::new(0);
    let far = shared(&store, &far_disk);
    let far_job = far.make(&job(7), UID).unwrap();
    let part = far_job.part(ZERO).unwrap();
    let mut told = 0;
    let mut pace = |bytes| {
        told += bytes;
        // The first segment is, and the third is not to be copied; nothing of the second is needed.
        match told > 6 * 4096 {
            true => Err(Error::refused("copy", "the job has ended", "nothing")),
            false => Ok(()),
        }
    };
    let cut = copy_part(&own, &part, id(3, 5), ZERO, Trust::Length, &mut pace);
    assert_eq!(cut.unwrap_err().kind, Kind::Refused);
    assert!(part.manifest(id(3, 5)).is_err());
    let rest = drain(&disk, &far_job, ZERO, id(3, 5)).unwrap();
    assert_eq!(rest, 2 * 4096, "the third alone");
    let new = FakeDisk::new(0);
    fetch(&far_job, &new, ZERO, id(3, 5)).unwrap();
    assert_whole(&new, ZERO, id(3, 5));
}

#[test]
fn after_a_crash_at_any_call_what_counts_is_whole() {
    in_forms(&FORMS, |_| {
        after_a_crash_at_any_call_what_counts_is_whole_in_a_form()
    });
}

fn after_a_crash_at_any_call_what_counts_is_whole_in_a_form() {
    let disk = node(ZERO, 2);
    let one = node(ONE, 2);
    let store = open(&disk);
    for at in 0.. {
        let few = if form() == PLAIN { 3 } else { 1 };
        for seed in 0..if long() { 50 } else { few } {
            let far_disk = FakeDisk::new(0);
            let far = shared(&store, &far_disk);
            let far_job = far.make(&job(7), UID).unwrap();
            drain(&disk, &far_job, ZERO, id(1, 5)).unwrap();
            drain(&one, &far_job, ONE, id(1, 5)).unwrap();
            drain(&one, &far_job, ONE, id(2, 5)).unwrap();
            far_disk.trouble(Trouble::Crash { at });
            let done = drain(&disk, &far_job, ZERO, id(2, 5)).and_then(|_| far_job.prune(1));
            let ended = done.is_ok();
            far_disk.reboot(seed * 1000 + at);
            let far_job = far.existing(&job(7)).unwrap().unwrap();
            let newest = far_job.complete(9).unwrap()[0].id;
            assert!(newest == id(2, 5) || !ended, "call {at}, seed {seed}");
            let new = FakeDisk::new(0);
            fetch(&far_job, &new, ZERO, newest).unwrap();
            assert_whole(&new, ZERO, newest);
            drain(&disk, &far_job, ZERO, id(2, 5)).unwrap();
            far_job.prune(1).unwrap();
            assert_eq!(far_job.complete(1).unwrap()[0].id, id(2, 5));
            if ended {
                return;
            }
        }
    }
}

#[test]
fn a_crash_while_a_part_is_fetched_leaves_a_store_that_can_be_used() {
    let disk = node(ZERO, 2);
    let far_disk = FakeDisk::new(0);
    let store = open(&disk);
    let far = shared(&store, &far_disk);
    let far_job = far.make(&job(7), UID).unwrap();
    drain(&disk, &far_job, ZERO, id(2, 5)).unwrap();
    for at in 0.. {
        let new = FakeDisk::new(0);
        let store = open(&new);
        let own = store.job(&job(7), UID).unwrap();
        new.trouble(Trouble::Crash { at });
        let part = far_job.part(ZERO).unwrap();
        let done = copy_part(&part, &own, id(2, 5), ZERO, Trust::Content, &mut free);
        let ended = done.is_ok();
        new.reboot(at);
        let (_, found) = opened(new.clone(), new.root()).unwrap();
        assert_eq!(found.faults, Vec::<String>::new(), "call {at}");
        fetch(&far_job, &new, ZERO, id(2, 5)).unwrap();
        assert_whole(&new, ZERO, id(2, 5));
        if ended {
            return;
        }
    }
}

#[test]
fn a_full_file_system_keeps_what_is_there() {
    let disk = node(ZERO, 2);
    let far_disk = FakeDisk::new(0);
    let store = open(&disk);
    let far = shared(&store, &far_disk);
    let far_job = far.make(&job(7), UID).unwrap();
    drain(&disk, &far_job, ZERO, id(1, 5)).unwrap();
    far_disk.trouble(Trouble::Full { after: 5000 });
    let full = drain(&disk, &far_job, ZERO, id(2, 5)).unwrap_err();
    assert_eq!(full.kind, Kind::Full, "{full}");
    far_disk.trouble(Trouble::None);
    let new = FakeDisk::new(0);
    fetch(&far_job, &new, ZERO, id(1, 5)).unwrap();
    assert_whole(&new, ZERO, id(1, 5));
    drain(&disk, &far_job, ZERO, id(2, 5)).unwrap();
}

#[test]
fn what_was_changed_cut_or_exchanged_there_never_counts_on_a_node() {
    in_forms(&FORMS, |_| {
        what_was_changed_cut_or_exchanged_there_never_counts_on_a_node_in_a_form()
    });
}

fn what_was_changed_cut_or_exchanged_there_never_counts_on_a_node_in_a_form() {
    type Harm = fn(&FakeDisk);
    let harms: [(&str, Harm); 8] = [
        ("a flipped bit of a segment", |disk| {
            let mut now = bytes(disk, &segment(0, 2));
            now[100] ^= 4;
            put(disk, &segment(0, 2), now);
        }),
        ("a flipped bit of an earlier segment", |disk| {
            let mut now = bytes(disk, &segment(0, 1));
            now[1] ^= 1;
            put(disk, &segment(0, 1), now);
        }),
        ("a segment that was cut", |disk| {
            let mut now = bytes(disk, &segment(0, 2));
            now.truncate(now.len() - 4096);
            put(disk, &segment(0, 2), now);
        }),
        ("a flipped bit of the manifest", |disk| {
            let mut now = bytes(disk, &manifest(0, 2));
            now[40] ^= 1;
            put(disk, &manifest(0, 2), now);
        }),
        ("the manifest of another node", |disk| {
            put(disk, &manifest(0, 2), bytes(disk, &manifest(1, 2)));
        }),
        ("all of another node", |disk| {
            put(disk, &manifest(0, 2), bytes(disk, &manifest(1, 2)));
            put(disk, &segment(0, 2), bytes(disk, &segment(1, 2)));
            put(disk, &segment(0, 1), bytes(disk, &segment(1, 1)));
        }),
        ("the manifest of another checkpoint", |disk| {
            put(disk, &manifest(0, 2), bytes(disk, &manifest(0, 1)));
        }),
        ("the segment of another checkpoint", |disk| {
            put(disk, &segment(0, 2), bytes(disk, &segment(0, 1)));
        }),
    ];
    let nodes = [node(ZERO, 2), node(ONE, 2)];
    let store = open(&nodes[0]);
    let far_disk = FakeDisk::new(0);
    let far = shared(&store, &far_disk);
    let far_job = far.make(&job(7), UID).unwrap();
    drain(&nodes[0], &far_job, ZERO, id(2, 5)).unwrap();
    drain(&nodes[1], &far_job, ONE, id(2, 5)).unwrap();
    for (what, harm) in harms {
        let harmed = far_disk.fork();
        harm(&harmed);
        let far = shared(&store, &harmed);
        let far_job = far.existing(&job(7)).unwrap().unwrap();
        let new = FakeDisk::new(0);
        let fetched = fetch(&far_job, &new, ZERO, id(2, 5));
        assert!(fetched.is_err(), "{what}");
        let store = open(&new);
        let kept = store
            .existing(&job(7))
            .and_then(|own| own.manifest(id(2, 5)));
        assert!(kept.is_err(), "{what}");
    }
}

#[test]
fn the_files_of_another_job_user_or_site_are_of_no_use() {
    let disk = node(ZERO, 1);
    let store = open(&disk);
    let far_disk = FakeDisk::new(0);
    let far = shared(&store, &far_disk);
    let far_job = far.make(&job(7), UID).unwrap();
    drain(&disk, &far_job, ZERO, id(1, 5)).unwrap();
    // The same number again, of another user.
    let refused = far.make(&job(7), 8).err().unwrap();
    assert_eq!(refused.kind, Kind::Refused, "{refused}");
    // Renamed to another job's.
    far_disk
        .rename(&far_disk.root(), b"7", b"8", false)
        .unwrap();
    assert_eq!(far.existing(&job(8)).err().unwrap().kind, Kind::Damaged);
    far_disk
        .rename(&far_disk.root(), b"8", b"7", false)
        .unwrap();
    // Of another site.
    let other = FakeDisk::new(0);
    let site = SiteKey::derive(b"another key that is long enough too");
    let (other, _) = Store::open(other.clone(), other.root(), site).unwrap();
    let there = DrainedStore::open(&other, far_disk.clone(), far_disk.root()).unwrap();
    assert_eq!(there.existing(&job(7)).err().unwrap().kind, Kind::Damaged);
    // Another job's part.
    let (mine, others) = (store.job(&job(7), UID), store.job(&job(9), UID));
    let (mine, others) = (mine.unwrap(), others.unwrap());
    let copied = copy_part(&mine, &others, id(1, 5), ZERO, Trust::Content, &mut free);
    assert_eq!(copied.unwrap_err().kind, Kind::Refused);
}

/// Two clusters may have one key, and both have a job 7.
#[test]
fn a_folder_has_the_jobs_of_one_cluster() {
    let disk = node(ZERO, 2);
    let store = open(&disk);
    let far_disk = FakeDisk::new(0);
    for _ in 0..2 {
        shared(&store, &far_disk).claim("alps").unwrap();
    }
    let refused = shared(&store, &far_disk).claim("eiger").unwrap_err();
    assert_eq!(refused.kind, Kind::Refused);
    let said = refused.to_string();
    for part in ["of cluster alps", "this is eiger", "another folder"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    shared(&store, &far_disk).claim("alps").unwrap();
    assert_eq!(shared(&store, &far_disk).jobs(), Ok(Vec::new()));
}

#[test]
fn damage_on_the_node_is_not_drained() {
    let disk = node(ZERO, 2);
    let name = format!("7/{}/segment", id(2, 5));
    let mut damaged = bytes(&disk, &name);
    damaged[9] ^= 1;
    put(&disk, &name, damaged);
    let store = open(&disk);
    let far_disk = FakeDisk::new(0);
    let far = shared(&store, &far_disk);
    let far_job = far.make(&job(7), UID).unwrap();
    let refused = drain(&disk, &far_job, ZERO, id(2, 5)).unwrap_err();
    assert_eq!(refused.kind, Kind::Damaged, "{refused}");
    assert!(far_job.part(ZERO).unwrap().manifest(id(2, 5)).is_err());
    // Nor is another node's part taken for this one's.
    let other = drain(&node(ONE, 1), &far_job, ZERO, id(1, 5)).unwrap_err();
    assert_eq!(other.kind, Kind::Damaged, "{other}");
}

#[test]
fn the_newest_stay_with_what_they_refer_to() {
    let nodes = [node(ZERO, 5), node(ONE, 5)];
    let store = open(&nodes[0]);
    let far_disk = FakeDisk::new(0);
    let far = shared(&store, &far_disk);
    let far_job = far.make(&job(7), UID).unwrap();
    far_job.prune(2).unwrap();
    for number in 1..=5 {
        drain(&nodes[0], &far_job, ZERO, id(number, 5)).unwrap();
        // One of them has a part that is not complete.
        if number != 4 {
            drain(&nodes[1], &far_job, ONE, id(number, 5)).unwrap();
        }
    }
    far_job.prune(1).unwrap();
    assert_eq!(far_job.complete(1).unwrap()[0].id, id(5, 5));
    for (index, disk) in [(ZERO, FakeDisk::new(0)), (ONE, FakeDisk::new(0))] {
        fetch(&far_job, &disk, index, id(5, 5)).unwrap();
        assert_whole(&disk, index, id(5, 5));
    }
    // Nothing of 2 is in what is kept.
    let part = far_disk.open_folder(&far_disk.root(), b"7").unwrap();
    let part = far_disk.open_folder(&part, b"node-0").unwrap();
    let left = far_disk.list(&part, 9).unwrap();
    let wanted = [id(1, 5), id(5, 5)].map(|id| id.to_string().into_bytes());
    assert_eq!(left, wanted);
    assert!(far_job.lead("n1").is_ok());
    assert_eq!(far_job.led_by().as_deref(), Some("n1"));
    assert_eq!(far.jobs().unwrap(), [job(7)]);
    for at in [3, 9, 20] {
        far_disk.trouble(Trouble::Crash { at });
        assert!(removed(&far).is_err());
        far_disk.reboot(at);
    }
    let other = far.owned(&job(7), Owner::user(UID + 1));
    assert!(other.is_err(), "another user's");
    removed(&far).unwrap();
    removed(&far).unwrap();
    assert!(far.jobs().unwrap().is_empty());
}

#[test]
fn a_folder_that_others_can_enter_or_that_fails_is_told() {
    let store_disk = FakeDisk::new(0);
    let store = open(&store_disk);
    let far_disk = FakeDisk::new(0);
    let far = shared(&store, &far_disk);
    far.probe("n1").unwrap();
    assert_eq!(
        far_disk.list(&far_disk.root(), 9).unwrap(),
        Vec::<Vec<u8>>::new()
    );
    far_disk.trouble(Trouble::ReadOnly { at: 0 });
    let why = far.probe("n1").unwrap_err();
    assert_eq!(why.kind, Kind::ReadOnly, "{why}");
    let place = Place::new();
    let (store, _) = place.open();
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::Permissions::from_mode(0o750);
    std::fs::set_permissions(place.path("restored"), open).unwrap();
    let disk = gpuos_store::disk::LinuxDisk;
    let refused = DrainedStore::open(&store, disk, place.folder("restored"));
    assert_eq!(refused.err().unwrap().kind, Kind::Refused);
}

fn removed(far: &DrainedStore<FakeDisk>) -> Result<()> {
    let owned = far.owned(&job(7), Owner::user(UID))?;
    owned.map_or(Ok(()), |owned| owned.remove().map(drop))
}
