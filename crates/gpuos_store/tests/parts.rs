//! One folder of a checkpoint, from bytes that lie here or elsewhere; and what a job has on a node, in short.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::{Manifest, ranks};
use gpuos_store::disk::LinuxDisk;
use gpuos_store::error::{Error, Kind, Result};
use gpuos_store::inventory::Others;
use gpuos_store::job::JobStore;
use gpuos_store::restore::{Target, restore_part};
use gpuos_store::source::{LocalSource, Source};

use crate::support::*;

/// Two checkpoints of two ranks; the second has what is equal in the segment of the first.
fn two(place: &Place, job: &JobStore<'_, LinuxDisk>) -> Manifest {
    place.put("rank-0-of-12/model/weights", &noise(1, 3 * EXTENT + 5));
    place.put("rank-0-of-12/step", b"1");
    place.put("rank-1-of-12/step", &noise(2, EXTENT));
    place.put("rank-10-of-12/step", &noise(3, EXTENT));
    fs::create_dir(place.path("program/rank-2-of-12")).unwrap();
    place.put("rank-3-of-12", b"a file");
    let mode = fs::Permissions::from_mode(0o500);
    fs::set_permissions(place.path("program/rank-0-of-12/model"), mode).unwrap();
    let source = place.folder("program");
    let first = write(job, id(1, 1), &LinuxDisk, &source, None).unwrap();
    job.commit(id(1, 1)).unwrap();
    place.put("rank-0-of-12/step", b"2");
    let second = write(job, id(2, 1), &LinuxDisk, &source, Some(&first)).unwrap();
    assert_eq!(second.segments.len(), 2);
    second
}

/// Restores to `restored/it`.
fn part_of(
    place: &Place,
    job: &JobStore<'_, LinuxDisk>,
    manifest: &Manifest,
    only: &[u8],
    source: &mut dyn Source,
) -> Result<()> {
    let folder = place.folder("restored");
    let target = Target {
        disk: &LinuxDisk,
        folder: &folder,
        name: b"it",
        owner: (me() == 0).then_some((1234, 1235)),
    };
    restore_part(job, manifest, only, &target, source)
}

#[test]
fn the_inside_of_one_folder_becomes_the_folder() {
    let place = Place::new();
    let (store, _) = place.open();
    let job = store.job(&job(7), me()).unwrap();
    let manifest = two(&place, &job);
    for (rank, there) in [(0, true), (1, true), (2, false)] {
        let only = format!("rank-{rank}-of-12");
        let mut source = LocalSource::new(&job);
        part_of(&place, &job, &manifest, only.as_bytes(), &mut source).unwrap();
        let restored = place.path("restored/it");
        let mut expected = seen(&place.path("program").join(&only));
        assert_eq!(expected.is_empty(), !there);
        for (mode, _) in expected.values_mut() {
            *mode &= 0o777;
        }
        assert_eq!(seen(&restored), expected);
        let facts = fs::metadata(&restored).unwrap();
        assert_eq!(facts.mode() & 0o7777, 0o700);
        assert!(me() != 0 || (facts.uid(), facts.gid()) == (1234, 1235));
        fs::remove_dir_all(restored).unwrap();
    }
}

#[test]
fn what_is_no_folder_at_the_top_is_refused() {
    let place = Place::new();
    let (store, _) = place.open();
    let job = store.job(&job(7), me()).unwrap();
    let manifest = two(&place, &job);
    let bad = [
        "",
        ".",
        "..",
        "rank-0",
        "rank-3-of-12",
        "rank-0-of-12/",
        "rank-0-of-12/model",
        "rank-4-of-12",
        "/",
    ];
    for bad in bad {
        let mut source = LocalSource::new(&job);
        let error = part_of(&place, &job, &manifest, bad.as_bytes(), &mut source).unwrap_err();
        assert_eq!(error.kind, Kind::Refused, "{bad}");
        assert!(error.to_string().contains("no such folder"), "{error}");
    }
    assert_eq!(fs::read_dir(place.path("restored")).unwrap().count(), 0);
}

/// Another node, over which segments come in the pieces that it serves.
struct Remote<'a, 'b> {
    job: &'a JobStore<'b, LinuxDisk>,
    asked: Vec<(CheckpointId, u64, usize)>,
    change: fn(&mut [u8]),
}

impl Source for Remote<'_, '_> {
    fn read(&mut self, segment: CheckpointId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.asked.push((segment, offset, buffer.len()));
        for (index, piece) in buffer.chunks_mut(1000).enumerate() {
            let at = offset + 1000 * index as u64;
            self.job.segment_bytes(segment, at, piece)?;
        }
        (self.change)(buffer);
        Ok(())
    }
}

#[test]
fn another_nodes_bytes_are_taken_only_if_they_are_what_was_written() {
    let (place, other) = (Place::new(), Place::new());
    let (store, _) = place.open();
    let held = store.job(&job(7), me()).unwrap();
    two(&place, &held);
    let bytes = held.manifest_bytes(id(2, 1), None).unwrap();
    let (store, _) = other.open();
    let own = store.job(&job(7), me()).unwrap();
    let manifest = own.opened(id(2, 1), &bytes).unwrap();

    let mut remote = Remote {
        job: &held,
        asked: Vec::new(),
        change: |_| (),
    };
    part_of(&other, &own, &manifest, b"rank-0-of-12", &mut remote).unwrap();
    let mut expected = seen(&place.path("program/rank-0-of-12"));
    expected.values_mut().for_each(|(mode, _)| *mode &= 0o777);
    assert_eq!(seen(&other.path("restored/it")), expected);
    fs::remove_dir_all(other.path("restored/it")).unwrap();
    // Nothing of other ranks was asked for, and the earlier segment was.
    assert_eq!(remote.asked.len(), 5);
    assert!(remote.asked.iter().any(|(of, _, _)| *of == id(1, 1)));

    remote.change = |bytes| bytes[0] ^= 1;
    let error = part_of(&other, &own, &manifest, b"rank-0-of-12", &mut remote).unwrap_err();
    assert_eq!(error.kind, Kind::Damaged);
    assert!(error.to_string().contains("digest"), "{error}");
    // What is not there at all: here nothing is.
    let mut local = LocalSource::new(&own);
    let error = part_of(&other, &own, &manifest, b"rank-1-of-12", &mut local).unwrap_err();
    assert_eq!(error.kind, Kind::Missing);
    assert!(
        error
            .to_string()
            .contains("cannot read the segment of checkpoint"),
        "{error}"
    );
    assert_eq!(fs::read_dir(other.path("restored")).unwrap().count(), 0);
}

#[test]
fn a_source_may_fail_with_its_own_sentence() {
    struct Gone;
    impl Source for Gone {
        fn read(&mut self, _: CheckpointId, _: u64, _: &mut [u8]) -> Result<()> {
            let tried = "ask node 3";
            Err(Error::new(
                Kind::Missing,
                tried,
                "the link is closed",
                "wait",
            ))
        }
    }
    let place = Place::new();
    let (store, _) = place.open();
    let job = store.job(&job(7), me()).unwrap();
    let manifest = two(&place, &job);
    let said = part_of(&place, &job, &manifest, b"rank-1-of-12", &mut Gone).unwrap_err();
    let said = said.to_string();
    assert!(
        said.ends_with("extent 0: cannot ask node 3: the link is closed; wait"),
        "{said}"
    );
    // A folder without a byte asks for nothing.
    part_of(&place, &job, &manifest, b"rank-2-of-12", &mut Gone).unwrap();
}

/// A peer may ask for any offset.
#[test]
fn bytes_beyond_a_segment_are_zero_or_an_error() {
    let place = Place::new();
    let (store, _) = place.open();
    let job = store.job(&job(7), me()).unwrap();
    let manifest = two(&place, &job);
    let length = manifest.segments[0].length;
    for offset in [length, length + 1, 1 << 40, i64::MAX as u64 - 5000] {
        let mut buffer = [1; 100];
        job.segment_bytes(id(2, 1), offset, &mut buffer).unwrap();
        assert_eq!(buffer, [0; 100]);
    }
    for offset in [1 << 63, u64::MAX] {
        assert!(job.segment_bytes(id(2, 1), offset, &mut [0; 100]).is_err());
    }
    assert!(job.segment_bytes(id(3, 1), 0, &mut [0]).is_err());
}

#[test]
fn a_node_knows_its_place_by_its_newest_manifest_that_holds() {
    let place = Place::new();
    let (store, _) = place.open();
    let job = store.job(&job(7), me()).unwrap();
    assert_eq!(job.claim().unwrap(), None);
    assert_eq!(job.kept().unwrap(), []);
    let manifest = two(&place, &job);
    assert_eq!(ranks(&manifest), [(0, 12), (1, 12), (2, 12), (10, 12)]);
    let (of, node, nodes, set) = job.claim().unwrap().unwrap();
    assert_eq!((of, node, nodes), (id(2, 1), NodeIndex(0), 1));
    assert_eq!(set, alone());

    let kept = job.kept().unwrap();
    let ids: Vec<_> = kept.iter().map(|kept| (kept.id, kept.committed)).collect();
    assert_eq!(ids, [(id(1, 1), true), (id(2, 1), false)]);
    let list = job.list().unwrap();
    for (kept, held) in kept.iter().zip(&list) {
        assert_eq!((kept.id, kept.taken), (held.id, held.taken));
        assert_eq!((kept.time, kept.files), (1_700_000_000, 5));
        assert_eq!(kept.bytes, 5 * EXTENT as u64 + 5 + 1 + 6);
        assert!(kept.taken > 0);
    }
    // A segment alone is none, and neither is a manifest that does not hold.
    job.commit(id(2, 1)).unwrap();
    job.remove_keeping(id(1, 1), Others::Keep).unwrap();
    assert_eq!(job.kept().unwrap().len(), 1);
    let at = place.path("store/7/2-0000000000000001/manifest");
    let mut bytes = fs::read(&at).unwrap();
    bytes[30] ^= 1;
    fs::write(&at, &bytes).unwrap();
    assert_eq!(job.kept().unwrap(), []);
    assert_eq!(job.claim().unwrap(), None);
}
