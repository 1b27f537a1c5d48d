//! Shards and neighbours' manifests: kept for others, and only as what they are.

use std::fs;

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_checkpoint::manifest::NodeSet;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::inventory::Others;
use gpuos_store::shard::{PIECE, ShardReader, ShardWriter};
use gpuos_store::verify::verify;

use crate::support::*;

#[test]
fn a_shard_comes_back_piece_by_piece_and_no_other_is_taken_for_it() {
    let place = Place::new();
    let (store, _) = place.open();
    let store_job = store.job(&job(7), me()).unwrap();
    for length in [0, 1, 4096, PIECE, PIECE + 5] {
        let bytes = noise(3, length);
        let size = length as u64;
        let mut writer = ShardWriter::create(&store_job, id(1, 1), 2, 3, size).unwrap();
        assert!(writer.piece(&[0; 7]).is_err());
        for piece in bytes.chunks(PIECE) {
            writer.piece(piece).unwrap();
        }
        assert!(ShardReader::open(&store_job, id(1, 1), 2, 3, size).is_err());
        writer.finish().unwrap();
        let shard = ShardReader::open(&store_job, id(1, 1), 2, 3, size).unwrap();
        let mut buffer = vec![0; PIECE];
        let mut read = Vec::new();
        for index in 0..shard.pieces() {
            read.extend_from_slice(shard.piece(index, &mut buffer).unwrap());
        }
        assert_eq!(read, bytes);
        assert!(shard.piece(shard.pieces(), &mut buffer).is_err());
        assert!(shard.piece(u64::MAX, &mut buffer).is_err());
        assert!(ShardReader::open(&store_job, id(1, 1), 2, 3, size + 1).is_err());
        assert!(ShardReader::open(&store_job, id(1, 1), 2, 3, u64::MAX).is_err());
        // The same bytes under the name of another shard, attempt or job.
        let file = place.path("store/7/1-0000000000000001/shard-2-3");
        let others = [
            (7, id(1, 1), 3, 2),
            (7, id(1, 2), 2, 3),
            (8, id(1, 1), 2, 3),
        ];
        for (number, other, stripe, shard_place) in others {
            let other_job = store.job(&job(number), me()).unwrap();
            let folder = place
                .path("store")
                .join(number.to_string())
                .join(other.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::copy(&file, folder.join(format!("shard-{stripe}-{shard_place}"))).unwrap();
            let opened = ShardReader::open(&other_job, other, stripe, shard_place, size);
            let refused = opened.err().unwrap().to_string();
            assert!(refused.contains("digests do not hold"), "{refused}");
        }
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn pieces_that_are_missing_are_told() {
    let place = Place::new();
    let (store, _) = place.open();
    let store_job = store.job(&job(7), me()).unwrap();
    let size = PIECE as u64 + 1;
    let mut writer = ShardWriter::create(&store_job, id(1, 1), 0, 0, size).unwrap();
    writer.piece(&noise(1, PIECE)).unwrap();
    let refused = writer.finish().unwrap_err().to_string();
    assert!(refused.contains("it has 1 of 2 pieces"), "{refused}");
}

#[test]
fn every_flipped_byte_of_a_shard_is_found() {
    let place = Place::new();
    place.put("a", &noise(1, 5000));
    let (store, _) = place.open();
    let store_job = store.job(&job(7), me()).unwrap();
    let mut new = new(id(1, 1));
    new.nodes = 3;
    let source = place.folder("program");
    let draft = store_job
        .ingest(&new, &LinuxDisk, &source, &limits(), None)
        .unwrap();
    let set = NodeSet {
        members: [0, 1, 2].map(NodeIndex).to_vec(),
        parity: 1,
        chunk: 4096,
    };
    let mut writer = ShardWriter::create(&store_job, id(1, 1), 0, 1, 4096).unwrap();
    writer.piece(&noise(2, 4096)).unwrap();
    writer.finish().unwrap();
    store_job.prepare(draft, set).unwrap();
    assert_eq!(verify(&store_job, id(1, 1)).unwrap(), []);
    assert_eq!(store_job.list().unwrap()[0].shards, [(0, 1)]);
    let file = place.path("store/7/1-0000000000000001/shard-0-1");
    let bytes = fs::read(&file).unwrap();
    for at in (0..bytes.len()).step_by(if long() { 1 } else { 61 }) {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        fs::write(&file, changed).unwrap();
        let faults = verify(&store_job, id(1, 1)).unwrap();
        assert_eq!(faults[0].file, b"shard-0-1", "byte {at}");
    }
}

#[test]
fn a_neighbours_manifest_is_kept_as_its_own_and_as_no_others() {
    let place = Place::new();
    place.put("a", &noise(1, 5000));
    let (store, _) = place.open();
    let store_job = store.job(&job(7), me()).unwrap();
    let source = place.folder("program");
    // Both nodes have the key; here both parts are made in one store, one after another.
    let part = |node: u16| {
        let mut new = new(id(1, 1));
        new.nodes = 2;
        new.node = NodeIndex(node);
        let draft = store_job
            .ingest(&new, &LinuxDisk, &source, &limits(), None)
            .unwrap();
        let mut set = alone();
        set.members = vec![NodeIndex(node)];
        store_job.prepare(draft, set).unwrap().1
    };
    let neighbours = part(1);
    store_job.remove(id(1, 1)).unwrap();
    part(0);
    store_job.put_copy(id(1, 1), &neighbours).unwrap();
    assert_eq!(store_job.list().unwrap()[0].copies, [NodeIndex(1)]);
    assert_eq!(verify(&store_job, id(1, 1)).unwrap(), []);
    assert!(store_job.copy(id(1, 1), NodeIndex(1)).is_ok());

    let refused = store_job
        .put_copy(id(1, 2), &neighbours)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("it is of checkpoint 1-"), "{refused}");
    let other = store.job(&job(8), me()).unwrap();
    let refused = other
        .put_copy(id(1, 1), &neighbours)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("authentication code"), "{refused}");

    // Both exchanged, and one in place of the other.
    let folder = place.path("store/7/1-0000000000000001");
    let (own, copy) = (folder.join("manifest"), folder.join("copy-1.manifest"));
    let own_bytes = fs::read(&own).unwrap();
    fs::write(&own, &neighbours).unwrap();
    let list = store_job.list().unwrap();
    assert!(
        list[0].faults[0].contains("two manifests of node 1"),
        "{list:?}"
    );
    fs::write(&copy, &own_bytes).unwrap();
    let list = store_job.list().unwrap();
    assert!(
        list[0].faults[0].contains("it is that of node 0"),
        "{list:?}"
    );
    fs::write(&own, &own_bytes).unwrap();
    fs::write(&copy, &neighbours).unwrap();

    // Kept while a neighbour's later checkpoint needs them, and gone with another call.
    store_job.remove_keeping(id(1, 1), Others::Keep).unwrap();
    assert_eq!(store_job.list().unwrap()[0].copies, [NodeIndex(1)]);
    let (_, found) = place.open();
    assert_eq!(found.faults, Vec::<String>::new());
    // Job 8 has no checkpoint.
    assert_eq!(found.removed, ["folder \"8\""]);
    store_job.remove(id(1, 1)).unwrap();
    assert_eq!(store_job.list().unwrap(), []);
}
