//! Folders that are stored compressed and encrypted, beside the slower of the disk and what one thread does, times the threads that there are.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::thread::available_parallelism;

use aes::Aes256;
use ctr::Ctr64BE;
use ctr::cipher::{KeyIvInit, StreamCipher};
use gpuos_checkpoint::ids::CheckpointId;
use gpuos_core::job::JobId;
use gpuos_store::coding::{Coding, Compress};
use gpuos_store::disk::{Disk, LinuxDisk};
use gpuos_store::key::{JobKeys, SiteKey};
use gpuos_store::store::Store;
use zstd::bulk::Compressor;

use crate::bytes::{MIB, noise, rate};
use crate::files::{FILES, Place, copy_back, ingest, put_back};
use crate::table::Table;

const EXTENT: usize = 2 * MIB;
/// Threads of the store at most.
const LANES: usize = 4;

/// What is stored, and what is said of it.
struct Kind {
    alone: &'static str,
    stored: &'static str,
    data: Vec<u8>,
    coding: Coding,
}

/// Weights as bf16: the upper half of numbers of a normal distribution with a deviation of 0.02, each the sum of twelve even ones.
fn weights(length: usize) -> Vec<u8> {
    let numbers = (0..length.div_ceil(2 * MIB)).flat_map(|nth| {
        let random = noise(7 + nth as u64, MIB * 24);
        let (pairs, _) = random.as_chunks::<2>();
        let (twelves, _) = pairs.as_chunks::<12>();
        let one = |twelve: &[[u8; 2]; 12]| {
            let even = twelve.iter().map(|two| u16::from_le_bytes(*two));
            let sum: f32 = even.map(|it| f32::from(it) / 65536.0).sum();
            let bytes = ((sum - 6.0) * 0.02).to_le_bytes();
            [bytes[2], bytes[3]]
        };
        twelves.iter().flat_map(one).collect::<Vec<u8>>()
    });
    numbers.take(length).collect()
}

/// Bytes that have four bits each, as counters, small numbers and text have about.
fn small(length: usize) -> Vec<u8> {
    let mut bytes = noise(8, length);
    bytes.iter_mut().for_each(|byte| *byte &= 15);
    bytes
}

/// What a thread of the store does with all extents. Gives the bytes that are left.
fn code(keys: &JobKeys, data: &[u8], coding: Coding) -> usize {
    let mut packer = Compressor::new(1).expect("there is memory");
    let mut room = vec![0; EXTENT];
    let mut left = 0;
    for extent in data.chunks(EXTENT) {
        black_box(keys.extent(black_box(extent)));
        let packed = match coding.compress {
            Compress::No => None,
            _ => packer.compress_to_buffer(extent, &mut room[..]).ok(),
        };
        let length = packed.unwrap_or(extent.len());
        if packed.is_none() {
            room[..length].copy_from_slice(extent);
        }
        if coding.encrypt {
            let mut cipher = Ctr64BE::<Aes256>::new(&[7; 32].into(), &[0; 16].into());
            cipher.apply_keystream(&mut room[..length]);
        }
        black_box(keys.extent(&room[..length]));
        left += length;
    }
    left
}

pub fn measure(folder: &Path, mib: usize, turns: usize, table: &mut Table) {
    let packs = Coding {
        compress: Compress::Always,
        encrypt: false,
    };
    let hides = Coding {
        compress: Compress::No,
        encrypt: true,
    };
    let both = Coding {
        encrypt: true,
        ..packs
    };
    let bytes = mib / 4 * MIB;
    let kinds = [
        Kind {
            alone: "digests and zstd, one thread, bytes of four bits",
            stored: "store bytes of four bits, compressed",
            data: small(bytes),
            coding: packs,
        },
        Kind {
            alone: "digests and zstd, one thread, weights as bf16",
            stored: "store weights as bf16, compressed",
            data: weights(bytes),
            coding: packs,
        },
        Kind {
            alone: "digests and AES-256-CTR, one thread",
            stored: "store weights as bf16, encrypted",
            data: weights(bytes),
            coding: hides,
        },
        Kind {
            alone: "digests, zstd and AES-256-CTR, one thread, bytes of four bits",
            stored: "store bytes of four bits, compressed and encrypted",
            data: small(bytes),
            coding: both,
        },
    ];
    for kind in kinds {
        one(folder, mib / 4, turns, kind, table);
    }
}

fn one(folder: &Path, mib: usize, turns: usize, kind: Kind, table: &mut Table) {
    let place = Place::new(folder);
    let bytes = kind.data.len();
    for (nth, part) in kind.data.chunks(bytes / FILES).enumerate() {
        let path = place.at("program").join(nth.to_string());
        let mut file = File::create(path).expect("a file is made");
        file.write_all(part)
            .and_then(|()| file.sync_all())
            .expect("the program's file is written");
    }
    let key = SiteKey::derive(b"a key of measurements that is long enough");
    let keys = SiteKey::derive(b"another").of_job(&JobId::from(1), 0);
    let root = LinuxDisk::folder(&place.at("store")).expect("the store is opened");
    let (store, _) = Store::open(LinuxDisk, root, key).expect("the store is opened");
    let store = store.coded(kind.coding);
    let job = store
        .job(&JobId::from(1), LinuxDisk.user())
        .expect("the job's store is opened");
    let lanes = available_parallelism().map_or(1, |all| all.get().min(LANES)) as f64;
    let mut all = [const { Vec::new() }; 6];
    let [codec, digests, write, bound, back, plain_back] = &mut all;
    for turn in 0..turns {
        let fio = place.fio(mib);
        let mut left = 0;
        codec.push(rate(bytes, || left = code(&keys, &kind.data, kind.coding)));
        digests.push(rate(bytes, || {
            for extent in kind.data.chunks(EXTENT) {
                black_box(keys.extent(black_box(extent)));
            }
        }));
        let id = CheckpointId {
            number: turn as u32 + 1,
            attempt: 1,
        };
        write.push(rate(bytes, || ingest(&job, &place, id)));
        // The disk takes what is left, of as many bytes of files.
        let disk = fio * bytes as f64 / left as f64;
        bound.push(disk.min(codec[turn] * lanes));
        back.push(rate(bytes, || put_back(&job, &place, id)));
        plain_back.push(rate(bytes, || copy_back(&place)));
        let restored = place.at("restored");
        fs::remove_dir_all(&restored).expect("it is removed");
        fs::create_dir(&restored).expect("it is made");
        job.remove(id).expect("it is removed");
        if turn == 0 {
            let percent = left as f64 * 100.0 / bytes as f64;
            eprintln!("{}: {percent:.0} % are left", kind.stored);
        }
    }
    let [codec, digests, write, bound, back, plain_back] = all;
    table.add(kind.alone, codec, "BLAKE3, one thread", digests);
    table.add(
        kind.stored,
        write,
        "the slower of fio and threads that do that",
        bound,
    );
    table.add(
        "restore that",
        back,
        "cp of files not in memory, and fsync",
        plain_back,
    );
}
