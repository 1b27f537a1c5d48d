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
    let memory = Path::new("/dev/shm");
    let kinds = [
        ("a program writes new files, on a disk", folder, true),
        ("a program writes new files, on a tmpfs", memory, true),
        ("a program writes over files, on a tmpfs", memory, false),
    ];
    for (what, folder, new) in kinds {
        let path = folder.join(format!("gpuos-stop-{}", std::process::id()));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        if !new {
            fs::write(&path, &state).expect("a file is written");
        }
        for _ in 0..turns {
            theirs.push(rate(bytes, || copy.copy_from_slice(black_box(&state))));
            ours.push(rate(bytes, || {
                let mut options = File::options();
                let file = options.write(true).create(new).open(&path);
                let mut file = file.expect("a file is opened");
                file.write_all(&state).expect("it is written");
            }));
            if new {
                fs::remove_file(&path).expect("it is removed");
            }
        }
        let _ = fs::remove_file(&path);
        table.add(what, ours, "memcpy", theirs);
    }
}
