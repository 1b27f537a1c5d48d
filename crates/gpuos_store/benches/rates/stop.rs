//! How long a program stands still while it writes its state into files, beside a copy of the same bytes in memory.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bytes::{MIB, noise, rate};
use crate::table::Table;

pub fn measure(folder: &Path, mib: usize, turns: usize, table: &mut Table) {
    // What a program has changed; more would be written back while it is measured.
    let bytes = mib.min(256) * MIB;
    let state = noise(3, bytes);
    let mut copy = vec![1; bytes];
    let memory = Path::new("/dev/shm");
    let own = Mounted::new(folder, bytes);
    let mut kinds = vec![
        ("a program writes new files, on a disk", folder, true),
        ("a program writes new files, on a tmpfs", memory, true),
        ("a program writes over files, on a tmpfs", memory, false),
    ];
    if let Some(Mounted(own)) = &own {
        kinds.push(("a program writes new files, with l0=", own, true));
        kinds.push(("a program writes over files, with l0=", own, false));
    }
    for (what, folder, new) in kinds {
        let path = folder.join(format!("gpuos-stop-{}", std::process::id()));
        let (mut ours, mut theirs, mut anew) = (Vec::new(), Vec::new(), Vec::new());
        // Not the first time: memory that the machine has not used yet costs more, whoever uses it.
        fs::write(&path, &state).expect("a file is written");
        if new {
            fs::remove_file(&path).expect("it is removed");
        }
        for _ in 0..turns {
            theirs.push(rate(bytes, || copy.copy_from_slice(black_box(&state))));
            anew.push(rate(bytes, || drop(black_box(state.clone()))));
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
        let is_own = own.as_ref().is_some_and(|own| own.0 == folder);
        table.add(what, ours.clone(), "memcpy", theirs);
        if is_own && new {
            table.add(what, ours, "memcpy into new memory", anew);
        }
    }
}

/// A tmpfs as slurmstepd mounts it for `l0=`; unmounted in the end.
struct Mounted(PathBuf);

impl Mounted {
    fn new(folder: &Path, bytes: usize) -> Option<Mounted> {
        let folder = folder.join(format!("gpuos-l0-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder is made");
        let options = format!("nosuid,nodev,noexec,noatime,size={},huge=always", 2 * bytes);
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "gpuos"]);
        let done = mount.arg(&folder).status();
        let mounted = Mounted(folder);
        if done.is_ok_and(|done| done.success()) {
            return Some(mounted);
        }
        eprintln!("rows with l0= are left out: only root can mount a tmpfs");
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-q").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}
