//! Folders in which root works: whether they are there, in nobody else's hands, on a disk, and with room.

use std::path::Path;

use gpuos_host::{Kind, Machine};

use super::about::About;
use super::findings::Findings;

/// File systems that are memory: what lies there is gone after a boot, and takes what jobs need.
const MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// File systems of one host: what lies there no other node has.
const LOCAL: [&str; 7] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay"];

/// What a folder is for.
pub struct Folder<'a> {
    /// What findings are about.
    pub name: About,
    /// What names it, such as `nvme in [memory]`.
    pub key: &'a str,
    /// The folder.
    pub path: &'a Path,
    /// Who may do more than root with it: 0o077 where nobody may.
    pub closed: u32,
    /// What is lost without it.
    pub why: &'a str,
}

/// The type of the file system that has a path; empty where that is not shown.
pub fn file_system(machine: &dyn Machine, path: &Path) -> String {
    let mounts = machine.read(Path::new("/proc/self/mounts"));
    let mounts = String::from_utf8(mounts.unwrap_or_default()).unwrap_or_default();
    let mount = |line: &str| {
        let mut words = line.split(' ').skip(1);
        // Blanks in a path are written as octal numbers.
        let place = words.next()?.replace("\\040", " ");
        let kind = words.next()?.to_string();
        path.starts_with(&place).then_some((place.len(), kind))
    };
    // The last of those that lie at the same place is on top.
    let all = mounts.lines().filter_map(mount);
    all.max_by_key(|(length, _)| *length)
        .map_or_else(String::new, |(_, kind)| kind)
}

/// Whether a user is root, or the one who runs this: a daemon that is an ordinary user's, as in a test, has folders of his.
pub fn is_trusted(machine: &dyn Machine, uid: u32) -> bool {
    let own = machine.stat(Path::new("/proc/self"));
    uid == 0 || own.is_ok_and(|own| own.uid == uid)
}

/// Whether a folder is on a file system of this host alone.
pub fn is_local(machine: &dyn Machine, path: &Path) -> bool {
    let kind = file_system(machine, path);
    LOCAL.contains(&kind.as_str()) || MEMORY.contains(&kind.as_str())
}

impl Folder<'_> {
    /// Looks at it; whether it is there. `missing` is what mends one that is not.
    pub fn check(&self, machine: &dyn Machine, missing: &str, findings: &mut Findings) -> bool {
        let Folder {
            name,
            key,
            path,
            closed,
            why,
        } = self;
        let shown = path.display();
        let stat = match machine.stat(path) {
            Ok(stat) => stat,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                findings
                    .warn(*name, format!("{key}: {shown} is not there"), missing)
                    .at(shown)
                    .why(*why);
                return false;
            }
            // Who may not look learns nothing.
            Err(_) => return false,
        };
        if stat.kind != Kind::Folder {
            let fix = format!("move it away, and make the folder: mkdir -m 700 {shown}");
            findings
                .fail(*name, format!("{key}: {shown} is no folder"), fix)
                .at(shown)
                .why(*why);
            return false;
        }
        if !is_trusted(machine, stat.uid) || stat.mode & closed != 0 {
            findings
                .fail(
                    *name,
                    format!("{key}: {shown} is of user {} with mode {:o}", stat.uid, stat.mode),
                    format!(
                        "chown root:root {shown}; chmod {:o} {shown}",
                        0o777 & !(*closed)
                    ),
                )
                .at(shown)
                .why("the daemon is root, and takes nothing from a folder that others can write or read");
        }
        true
    }

    /// Looks whether it is on a disk.
    pub fn on_disk(&self, machine: &dyn Machine, findings: &mut Findings) {
        let kind = file_system(machine, self.path);
        if MEMORY.contains(&kind.as_str()) {
            let shown = self.path.display();
            findings
                .fail(
                    self.name,
                    format!("{}: {shown} is on {kind}, which is memory", self.key),
                    "mount a disk of the node there, or name a folder on one",
                )
                .at(shown)
                .why("what lies there takes memory of jobs, and is gone after a boot");
        }
    }
}
