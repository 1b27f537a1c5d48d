//! A program's files: drawn at random, written and read.

use std::collections::BTreeMap;

use gpuos_store::disk::{Disk, Form};
use gpuos_store::fake::{FakeDisk, Open};

use crate::random::Random;

/// A folder's files by their paths.
pub type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// What the clusters draw beside numbers.
pub trait Draw {
    /// Whether something happens that does so often.
    fn percent(&mut self, share: u64) -> bool;

    /// Bytes of a file.
    fn bytes(&mut self, length: usize) -> Vec<u8>;
}

impl Draw for Random {
    fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // A run of zeros now and then is a hole.
        if !self.percent(5) {
            for eight in bytes.chunks_mut(4) {
                let value = (self.below(1 << 32) as u32).to_le_bytes();
                eight.copy_from_slice(&value[..eight.len()]);
            }
        }
        bytes
    }
}

pub fn tree(random: &mut Random) -> Files {
    let count = 2 + random.below(5);
    let file = |number| {
        let deep = ["", "a/", "a/b/", "c/"][random.below(4) as usize];
        let length = match random.below(4) {
            0 => random.below(200),
            1 => random.below(60_000),
            _ => random.below(12_000),
        };
        let mut bytes = random.bytes(length as usize);
        // Something that can be compressed, and something that cannot.
        if number % 2 == 0 {
            bytes.iter_mut().for_each(|byte| *byte &= 3);
        }
        (format!("{deep}{number}").into_bytes(), bytes)
    };
    (0..count).map(file).collect()
}

pub fn write(disk: &FakeDisk, root: Open, files: &Files) {
    for (path, bytes) in files {
        let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let name = parts.pop().unwrap();
        let mut at = root;
        for part in parts {
            let _ = disk.make_folder(&at, part);
            at = disk.open_folder(&at, part).unwrap();
        }
        let file = disk.create(&at, name).unwrap();
        let mut done = 0;
        while done < bytes.len() {
            done += disk.write_at(&file, &bytes[done..], done as u64).unwrap();
        }
    }
}

pub fn read(disk: &FakeDisk, root: Open) -> Files {
    fn add(disk: &FakeDisk, at: Open, path: &[u8], files: &mut Files) {
        for name in disk.list(&at, usize::MAX).unwrap() {
            let path = match path {
                b"" => name.clone(),
                path => [path, b"/", &name].concat(),
            };
            let facts = disk.look(&at, &name).unwrap();
            if facts.form == Form::Folder {
                add(disk, disk.open_folder(&at, &name).unwrap(), &path, files);
                continue;
            }
            let file = disk.open(&at, &name).unwrap();
            let mut bytes = vec![0; facts.size as usize];
            let mut done = 0;
            while done < bytes.len() {
                done += disk
                    .read_at(&file, &mut bytes[done..], done as u64)
                    .unwrap();
            }
            files.insert(path, bytes);
        }
    }
    let mut files = Files::new();
    add(disk, root, b"", &mut files);
    files
}
