//! In slurmstepd: makes the folder of a job while gpuos_mover of this node is away for a moment, as it would itself. It takes it up when it is
//! back, and answers the programs that wait there.
//!
//! The folder of all jobs is root's, and so is what is made in it but for the one in which ranks join. The mover takes a folder up only if
//! slurmctld says the same of the job as is written there.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, SystemTime};

use gpuos_core::wire::MOVER_ALIVE;

/// A mover that was there so lately comes back. Own choice: longer than an upgrade takes.
const LATELY: Duration = Duration::from_secs(600);

/// A job on this node.
pub struct Ahead<'a> {
    /// Its number.
    pub job: u32,
    /// Its user and the group of its processes.
    pub owner: (u32, u32),
    /// How often Slurm has started it again, as its environment says.
    pub run: u32,
    /// The value of the option.
    pub asked: &'a str,
}

/// Whether a mover that makes folders there was on this node lately.
pub fn was_here(base: &Path) -> bool {
    let Ok(facts) = fs::symlink_metadata(base) else {
        return false;
    };
    // SAFETY: a call without arguments that cannot fail.
    let us = unsafe { libc::geteuid() };
    if !facts.is_dir() || facts.uid() != us || facts.mode() & 0o022 != 0 {
        return false;
    }
    let alive = fs::symlink_metadata(base.join(MOVER_ALIVE)).and_then(|alive| alive.modified());
    // A clock that was put back makes it later than now.
    alive.is_ok_and(|at| {
        SystemTime::now()
            .duration_since(at)
            .map_or(true, |since| since <= LATELY)
    })
}

impl Ahead<'_> {
    /// The job's folder beneath that of all jobs. `None`: no mover was here lately, or there is something else of that name.
    pub fn make(&self, base: &Path) -> Option<String> {
        if !was_here(base) {
            return None;
        }
        let folder = base.join(self.job.to_string());
        let (uid, gid) = self.owner;
        let run = format!("{} {uid} {gid} {}\n", self.run, self.asked);
        let unfinished = base.join(format!(".ahead-{}-{}", self.job, std::process::id()));
        let made = self
            .fill(&unfinished, &run)
            .and_then(|()| fs::rename(&unfinished, &folder));
        if made.is_err() {
            let _ = fs::remove_dir_all(&unfinished);
            // Another step has made it, or a mover that has gone since.
            let there = fs::read_to_string(folder.join("run")).ok()?;
            if there != run {
                return None;
            }
        }
        folder.to_str().map(str::to_owned)
    }

    /// Nobody enters it before it is whole.
    fn fill(&self, unfinished: &Path, run: &str) -> io::Result<()> {
        let mut folder = DirBuilder::new();
        folder.mode(0o700);
        folder.create(unfinished)?;
        let ranks = unfinished.join("ranks");
        folder.create(&ranks)?;
        chown(&ranks, Some(self.owner.0), Some(self.owner.1))?;
        let file = unfinished.join("run");
        io::Write::write_all(&mut File::create(&file)?, run.as_bytes())?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
        fs::set_permissions(unfinished, fs::Permissions::from_mode(0o755))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(name: &str) -> std::path::PathBuf {
        let base = std::env::temp_dir().join(format!("gpuos-ahead-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        fs::create_dir(&base).unwrap();
        fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).unwrap();
        base
    }

    fn ahead() -> Ahead<'static> {
        // SAFETY: calls without arguments that cannot fail.
        let own = unsafe { (libc::geteuid(), libc::getegid()) };
        Ahead {
            job: 7,
            owner: own,
            run: 2,
            asked: "10m,l2=partner",
        }
    }

    #[test]
    fn a_folder_is_made_where_a_mover_was_lately_and_once() {
        let base = base("once");
        assert_eq!(ahead().make(&base), None, "no mover was ever here");
        let alive = File::create(base.join(MOVER_ALIVE)).unwrap();
        let made = ahead().make(&base).expect("made");
        assert_eq!(Path::new(&made), base.join("7"));
        let run = fs::read_to_string(base.join("7/run")).unwrap();
        let (uid, gid) = ahead().owner;
        assert_eq!(run, format!("2 {uid} {gid} 10m,l2=partner\n"));
        let mode = |name: &str| fs::metadata(base.join(name)).unwrap().mode() & 0o7777;
        assert_eq!(
            (mode("7"), mode("7/ranks"), mode("7/run")),
            (0o755, 0o700, 0o644)
        );
        // Another step of the same run, and one of a later run.
        assert_eq!(ahead().make(&base), Some(made));
        let later = Ahead { run: 3, ..ahead() };
        assert_eq!(later.make(&base), None);
        let names = fs::read_dir(&base).unwrap().count();
        assert_eq!(names, 2, "nothing is left behind");
        let before = SystemTime::now() - LATELY - Duration::from_secs(60);
        alive.set_modified(before).unwrap();
        assert_eq!(
            Ahead { job: 8, ..ahead() }.make(&base),
            None,
            "it was too long ago"
        );
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_base_where_others_could_write_is_not_used() {
        let base = base("open");
        File::create(base.join(MOVER_ALIVE)).unwrap();
        fs::set_permissions(&base, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(ahead().make(&base), None);
        let link = base.join("link");
        std::os::unix::fs::symlink(&base, &link).unwrap();
        assert_eq!(ahead().make(&link), None);
        fs::remove_dir_all(base).unwrap();
    }
}
