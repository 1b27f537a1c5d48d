//! Segments and manifests that are made again elsewhere.

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_store::rebuild::SegmentMaker;
use gpuos_store::verify::{segment_faults, verify};

use crate::support::*;

#[test]
fn a_part_is_made_again_of_its_bytes_and_counts_once_it_verifies() {
    let place = Place::new();
    place.put("a", &noise(1, 30_000));
    place.put("b/c", &noise(2, 9_000));
    let (store, _) = place.open();
    let first = store.job(&job(7), me()).unwrap();
    let program = place.folder("program");
    let disk = gpuos_store::disk::LinuxDisk;
    let manifest = write(&first, id(1, 1), &disk, &program, None).unwrap();
    let bytes = first.manifest_bytes(id(1, 1), None).unwrap();
    let length = manifest.segments[0].length;
    let mut segment = vec![7; length as usize + 5000];
    first.segment_bytes(id(1, 1), 0, &mut segment).unwrap();
    assert!(segment[length as usize..].iter().all(|byte| *byte == 0));

    let other = Place::new();
    let (store, _) = other.open();
    let again = store.job(&job(7), me()).unwrap();
    assert!(again.segment_bytes(id(1, 1), 0, &mut [0]).is_err());
    assert_eq!(segment_faults(&again, &manifest, id(1, 1)).len(), 1);
    let mut maker = SegmentMaker::create(&again, id(1, 1), length).unwrap();
    let (front, back) = segment.split_at(5000);
    maker.write(front).unwrap();
    maker.write(back).unwrap();
    maker.finish().unwrap();
    assert_eq!(segment_faults(&again, &manifest, id(1, 1)), []);
    // As the part of another node it is not taken, and with a changed byte as none.
    assert!(again.put_manifest(id(1, 1), NodeIndex(1), &bytes).is_err());
    let mut changed = bytes.clone();
    changed[20] ^= 1;
    assert!(
        again
            .put_manifest(id(1, 1), NodeIndex(0), &changed)
            .is_err()
    );
    assert!(again.opened(id(1, 2), &bytes).is_err());
    again.put_manifest(id(1, 1), NodeIndex(0), &bytes).unwrap();
    assert_eq!(verify(&again, id(1, 1)).unwrap(), []);

    let mut maker = SegmentMaker::create(&again, id(1, 1), length).unwrap();
    maker.write(&front[..4096]).unwrap();
    assert!(maker.finish().is_err());
    segment[17] ^= 1;
    let mut maker = SegmentMaker::create(&again, id(1, 1), length).unwrap();
    maker.write(&segment).unwrap();
    maker.finish().unwrap();
    assert_eq!(segment_faults(&again, &manifest, id(1, 1)).len(), 1);
}

#[test]
fn a_job_goes_back_to_an_earlier_checkpoint() {
    let place = Place::new();
    place.put("a", b"first");
    let (store, _) = place.open();
    let of_job = store.job(&job(7), me()).unwrap();
    let program = place.folder("program");
    let disk = gpuos_store::disk::LinuxDisk;
    for number in 1..=3 {
        write(&of_job, id(number, 1), &disk, &program, None).unwrap();
        of_job.commit(id(number, 1)).unwrap();
    }
    assert!(of_job.commit(id(2, 1)).is_err());
    assert!(of_job.adopt(id(2, 9)).is_err());
    of_job.adopt(id(2, 1)).unwrap();
    assert_eq!(of_job.current().unwrap(), Some(id(2, 1)));
    let committed = of_job
        .list()
        .unwrap()
        .into_iter()
        .filter(|held| held.committed);
    assert_eq!(
        committed.map(|held| held.id.number).collect::<Vec<_>>(),
        [1, 2]
    );
    of_job.remove(id(3, 1)).unwrap();
    assert!(of_job.remove(id(2, 1)).is_err());
}
