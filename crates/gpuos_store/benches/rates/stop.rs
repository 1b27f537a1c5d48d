//! How long a program stands still while it writes its state into files, beside a copy of the same bytes in memory.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::path::Path;

use crate::bytes::{MIB, noise, rate};
use crate::table::Table;

pub fn measure(folder: &Path, mib: usize, turns: usize, table: &mut Table) {
    // What a program has changed; more would be written back while it is measured.
    let bytes = mib.min(256) * MIB;
    let state = noise(3, bytes);
    let mut copy = vec![1; bytes];
    let folders = [
        ("a program writes new files, on a disk", folder),
        (
            "a program writes new files, in memory (tmpfs)",
            Path::new("/dev/shm"),
        ),
    ];
    for (what, folder) in folders {
        let path = folder.join(format!("gpuos-stop-{}", std::process::id()));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..turns {
            theirs.push(rate(bytes, || copy.copy_from_slice(black_box(&state))));
            ours.push(rate(bytes, || {
                let mut file = File::create(&path).expect("a file is made");
                file.write_all(&state).expect("it is written");
            }));
            fs::remove_file(&path).expect("it is removed");
        }
        table.add(what, ours, "memcpy", theirs);
    }
}
