//! A program's folder into the store and back, beside fio, the digests alone, and a plain file.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::NodeSet;
use gpuos_core::job::JobId;
use gpuos_store::buffer::Buffer;
use gpuos_store::disk::{Disk, LinuxDisk};
use gpuos_store::ingest::Limits;
use gpuos_store::job::{JobStore, New};
use gpuos_store::key::SiteKey;
use gpuos_store::restore::{Target, restore};
use gpuos_store::shard::{PIECE, ShardWriter};
use gpuos_store::store::Store;
use gpuos_store::stream::Stream;
use rustix::fs::{Advice, fadvise};

use crate::bytes::{MIB, noise, rate};
use crate::table::Table;

/// A rank's files.
pub const FILES: usize = 4;

pub fn measure(folder: &Path, mib: usize, turns: usize, table: &mut Table) {
    let place = Place::new(folder);
    let bytes = mib * MIB;
    let data = noise(1, bytes / FILES);
    for nth in 0..FILES {
        let mut file =
            File::create(place.at("program").join(nth.to_string())).expect("a file is made");
        // No two extents are the same, or they would be kept once.
        let mut data = data.clone();
        data.chunks_mut(4096)
            .for_each(|page| page[0] ^= nth as u8 + 1);
        file.write_all(&data)
            .and_then(|()| file.sync_all())
            .expect("the program's file is written");
    }
    let key = SiteKey::derive(b"a key of measurements that is long enough");
    let root = LinuxDisk::folder(&place.at("store")).expect("the store is opened");
    let (store, _) = Store::open(LinuxDisk, root, key).expect("the store is opened");
    let job = store
        .job(&JobId::from(1), LinuxDisk.user())
        .expect("the job's store is opened");
    let keys = SiteKey::derive(b"another").of_job(&JobId::from(1), 0);

    let mut all = [const { Vec::new() }; 9];
    let [
        write,
        fio,
        codec,
        bound,
        plain,
        shard,
        back,
        plain_back,
        threads,
    ] = &mut all;
    for turn in 0..turns {
        fio.push(place.fio(mib));
        codec.push(rate(bytes, || {
            for _ in 0..FILES {
                for extent in data.chunks(2 * MIB) {
                    black_box(keys.extent(black_box(extent)));
                }
            }
        }));
        threads.push(rate(bytes, || place.streamed(bytes)));
        fs::remove_file(place.at("streamed")).expect("it is removed");
        bound.push(fio[turn].min(codec[turn]));
        plain.push(rate(bytes, || place.plain(&data)));
        fs::remove_file(place.at("plain")).expect("it is removed");
        let id = CheckpointId {
            number: turn as u32 + 1,
            attempt: 1,
        };
        write.push(rate(bytes, || ingest(&job, &place, id)));
        shard.push(rate(bytes, || write_shard(&job, id, &data)));
        back.push(rate(bytes, || put_back(&job, &place, id)));
        let read = place.at("restored");
        plain_back.push(rate(bytes, || copy_back(&place)));
        fs::remove_dir_all(&read).expect("it is removed");
        fs::create_dir(&read).expect("it is made");
        job.remove(id).expect("it is removed");
    }
    let [
        write,
        fio,
        codec,
        bound,
        plain,
        shard,
        back,
        plain_back,
        threads,
    ] = all;
    table.add(
        "write alone, by the store's threads",
        threads,
        "fio, O_DIRECT",
        fio.clone(),
    );
    table.add(
        "store a program's folder",
        write.clone(),
        "the slower of fio and BLAKE3",
        bound.clone(),
    );
    table.add(
        "store a program's folder",
        write.clone(),
        "fio, O_DIRECT",
        fio,
    );
    table.add(
        "store a program's folder",
        write.clone(),
        "BLAKE3, one thread",
        codec,
    );
    table.add(
        "store a program's folder",
        write,
        "write and fsync of one file",
        plain,
    );
    table.add(
        "store a shard of parity",
        shard,
        "the slower of fio and BLAKE3",
        bound,
    );
    table.add(
        "restore a folder",
        back,
        "cp of files not in memory, and fsync",
        plain_back,
    );
}

pub fn ingest(job: &JobStore<'_, LinuxDisk>, place: &Place, id: CheckpointId) {
    let new = New {
        id,
        node: NodeIndex(0),
        nodes: 1,
        time: 0,
    };
    let folder = LinuxDisk::folder(&place.at("program")).expect("the program's folder is opened");
    let draft = job.ingest(&new, &LinuxDisk, &folder, &Limits::default(), None);
    let set = NodeSet {
        members: vec![NodeIndex(0)],
        parity: 0,
        chunk: 0,
    };
    job.prepare(draft.expect("it is stored"), set)
        .expect("it is prepared");
}

fn write_shard(job: &JobStore<'_, LinuxDisk>, id: CheckpointId, data: &[u8]) {
    let length = (data.len() * FILES) as u64;
    let mut writer = ShardWriter::create(job, id, 0, 0, length).expect("a shard is begun");
    for _ in 0..FILES {
        data.chunks(PIECE)
            .for_each(|piece| writer.piece(piece).expect("a piece is written"));
    }
    writer.finish().expect("the shard is finished");
}

pub fn put_back(job: &JobStore<'_, LinuxDisk>, place: &Place, id: CheckpointId) {
    let folder = LinuxDisk::folder(&place.at("restored")).expect("the folder is opened");
    let target = Target {
        disk: &LinuxDisk,
        folder: &folder,
        name: b"it",
        owner: None,
    };
    let manifest = job.manifest(id).expect("it is there");
    restore(job, &manifest, &target).expect("it is restored");
}

pub fn copy_back(place: &Place) {
    for nth in 0..FILES {
        let to = place.at("restored").join(nth.to_string());
        let from = place.at("program").join(nth.to_string());
        // What the store has is not in memory either.
        let file = File::open(&from).expect("a file is opened");
        fadvise(&file, 0, None, Advice::DontNeed).expect("it leaves memory");
        fs::copy(&from, &to).expect("a file is copied");
        File::open(to)
            .and_then(|file| file.sync_all())
            .expect("it is on the disk");
    }
}

/// A folder of its own, which goes with it.
pub struct Place(PathBuf);

impl Place {
    pub fn new(folder: &Path) -> Place {
        let place = Place(folder.join(format!("gpuos-rates-{}", std::process::id())));
        for name in ["store", "program", "restored"] {
            fs::create_dir_all(place.at(name)).expect("a folder is made");
            fs::set_permissions(place.at(name), fs::Permissions::from_mode(0o700))
                .expect("it is private");
        }
        place
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn plain(&self, data: &[u8]) {
        let mut file = File::create(self.at("plain")).expect("a file is made");
        for _ in 0..FILES {
            file.write_all(data).expect("it is written");
        }
        file.sync_all().expect("it is on the disk");
    }

    /// What the store writes with, and nothing else.
    fn streamed(&self, bytes: usize) {
        let folder = LinuxDisk::folder(&self.0).expect("the folder is opened");
        let file = LinuxDisk
            .create(&folder, b"streamed")
            .expect("a file is made");
        LinuxDisk
            .set_length(&file, bytes as u64)
            .expect("it gets its length");
        let mut stream = LinuxDisk.stream(&file).expect("it can be written");
        let mut buffer = Buffer::new(2 * MIB);
        for at in (0..bytes).step_by(2 * MIB) {
            buffer = stream
                .write(buffer, 2 * MIB, at as u64)
                .expect("it is written");
        }
        stream.finish().expect("it is written");
        LinuxDisk.sync(&file).expect("it is on the disk");
    }

    /// MiB/s of fio, which says KiB/s in its 48th field.
    pub fn fio(&self, mib: usize) -> f64 {
        let out = Command::new("fio")
            .arg(format!("--directory={}", self.0.display()))
            .arg(format!("--size={mib}m"))
            .args([
                "--name=fio",
                "--rw=write",
                "--bs=2m",
                "--direct=1",
                "--ioengine=io_uring",
                "--iodepth=8",
            ])
            .args([
                "--fallocate=none",
                "--end_fsync=1",
                "--unlink=1",
                "--output-format=terse",
            ])
            .output()
            .expect("fio runs; Debian's package fio has it");
        let text = String::from_utf8_lossy(&out.stdout);
        let rate = text
            .split(';')
            .nth(47)
            .and_then(|rate| rate.parse::<f64>().ok());
        rate.unwrap_or_else(|| panic!("fio: {text}{}", String::from_utf8_lossy(&out.stderr)))
            / 1024.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
