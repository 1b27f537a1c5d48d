//! Folders of jobs of which a part lies in memory: a tmpfs that slurmstepd has mounted. What can be seen of it needs root.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuos_moverd::folder::{JobFolder, Kept, Trash};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::support::*;

fn wanted() -> Kept {
    Kept {
        asked: "10m,l0=32M,l2=partner".into(),
        ..kept(0)
    }
}

/// The folder of job 7, whose folder in memory is unmounted in the end, wherever it is.
struct Job {
    base: Base,
    folder: JobFolder,
}

impl Job {
    fn new() -> Job {
        let base = Base::new();
        let folder = JobFolder::create(&base.path(), &job(7), &wanted()).unwrap();
        Job { base, folder }
    }

    fn memory(&self) -> PathBuf {
        self.folder.path().join("memory")
    }

    /// As slurmstepd does it. `None`: nothing can be mounted here.
    fn mounted(more: &str) -> Option<Job> {
        let job = Job::new();
        fs::create_dir(job.memory()).unwrap();
        fs::set_permissions(job.memory(), fs::Permissions::from_mode(0o755)).unwrap();
        let done = is_root() && tmpfs(&job.memory(), more);
        if !done {
            eprintln!("nothing can be mounted here");
        }
        done.then_some(job)
    }

    /// Asks for a checkpoint; gives the folder of the rank.
    fn ask(&self, number: u32) -> PathBuf {
        self.folder.ask(number, "asked", &[(0, 1)]).unwrap();
        let files = self.folder.path().join(format!("{number}/files"));
        files.join("rank-0-of-1")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let gone = fs::read_dir(self.base.path().join(".gone/jobs"));
        let gone = gone.into_iter().flatten().flatten();
        let jobs = gone.map(|entry| entry.path().join("memory"));
        for memory in jobs.chain([self.memory()]) {
            while unmount(&memory, UnmountFlags::DETACH).is_ok() {}
        }
    }
}

fn tmpfs(at: &Path, more: &str) -> bool {
    let data = std::ffi::CString::new(format!("size=32m,mode=0755{more}")).unwrap();
    mount("gpuos", at, "tmpfs", MountFlags::NODEV, data.as_c_str()).is_ok()
}

fn device(path: impl AsRef<Path>) -> u64 {
    fs::metadata(path).unwrap().dev()
}

#[test]
fn files_lie_in_memory_and_go_when_the_checkpoint_ends() {
    let Some(job) = Job::mounted("") else {
        return;
    };
    for number in 1..4 {
        let files = job.ask(number);
        let folder = job.folder.path();
        let link = folder.join(number.to_string());
        let leads = fs::read_link(&link).unwrap();
        assert_eq!(leads, Path::new(&format!("memory/{number}")));
        assert_eq!(device(&files), device(job.memory()));
        assert_ne!(device(&files), device(folder));
        let (uid, gid) = owner();
        assert_eq!(facts(&files), (uid, gid, 0o700));
        // Two of them would not fit.
        user(
            &files,
            "head -c 20M /dev/zero >f; touch ../../ready.0; mkdir -p a/b",
        );
        assert_eq!(job.folder.saved(number).unwrap().len(), 1);
        assert_eq!(device(folder.join("request")), device(folder));
        let opened = job.folder.files(number).unwrap();
        assert_eq!(rustix::fs::fstat(&opened).unwrap().st_dev, device(&files));
        drop(opened);
        let failed = (number == 2).then_some("no");
        job.folder.close(number, failed).unwrap();
        assert!(fs::symlink_metadata(link).is_err());
        let left = names(job.memory());
        assert_eq!(left, [".ballast", ".gone"]);
        assert!(names(job.memory().join(".gone")).is_empty());
        let free = rustix::fs::statvfs(job.memory()).unwrap();
        assert!(free.f_bavail * free.f_frsize > 30 << 20);
    }
    assert_eq!(job.folder.not_in_memory(), None);
}

#[test]
fn without_a_tmpfs_that_can_be_used_files_go_to_the_disk() {
    let why = |job: &Job, number| {
        let files = job.ask(number);
        assert_eq!(device(&files), device(job.folder.path()));
        let why = job.folder.not_in_memory().unwrap_or_default();
        job.folder.close(number, None).unwrap();
        why
    };
    let job = Job::new();
    assert!(why(&job, 1).contains("no tmpfs of root's is mounted"));
    assert_eq!(why(&job, 2), "", "it is said once");
    // A folder that is nothing but that, and a link of somebody who could.
    fs::create_dir(job.memory()).unwrap();
    assert_eq!(why(&job, 3), "");
    fs::remove_dir(job.memory()).unwrap();
    symlink("/dev/shm", job.memory()).unwrap();
    assert_eq!(why(&job, 4), "");
    drop(job);
    // Tasks do not see it.
    let Some(job) = Job::mounted("") else {
        return;
    };
    user(&job.folder.path().join("ranks"), "touch no-memory");
    assert_eq!(job.folder.joins().unwrap(), []);
    assert!(why(&job, 1).contains("the program does not see it"));
    drop(job);
    // Others could write there.
    let Some(job) = Job::mounted(",mode=0777") else {
        return;
    };
    assert!(why(&job, 1).contains("no tmpfs of root's is mounted"));
}

#[test]
fn a_checkpoint_that_does_not_fit_has_the_next_ones_written_to_the_disk() {
    let Some(job) = Job::mounted("") else {
        return;
    };
    let files = job.ask(1);
    user(
        &files,
        "! head -c 40M /dev/zero >f 2>/dev/null; touch ../../ready.0",
    );
    // One that was written, and came to nothing for another reason.
    job.folder.close(1, None).unwrap();
    let files = job.ask(2);
    assert_eq!(device(&files), device(job.memory()));
    user(&files, "! head -c 40M /dev/zero >f 2>/dev/null");
    job.folder.close(2, Some("it has not saved")).unwrap();
    let files = job.ask(3);
    assert_eq!(device(&files), device(job.folder.path()));
    let why = job.folder.not_in_memory().unwrap();
    assert!(why.contains("did not fit"), "{why}");
}

#[test]
fn a_user_who_leaves_no_file_to_be_made_there_is_in_his_own_way() {
    let Some(job) = Job::mounted(",nr_inodes=40") else {
        return;
    };
    let files = job.ask(1);
    user(
        &files,
        "i=0; while [ $i -lt 60 ] && (: >f$i) 2>/dev/null; do i=$((i+1)); done; [ $i -lt 60 ]",
    );
    job.folder.close(1, None).unwrap();
    assert_eq!(names(job.memory()), [".ballast", ".gone"]);
    assert!(names(job.memory().join(".gone")).is_empty());
    assert_eq!(device(job.ask(2)), device(job.memory()));
}

#[test]
fn a_mover_that_is_started_anew_frees_what_was_being_made() {
    let Some(job) = Job::mounted("") else {
        return;
    };
    let files = job.ask(4);
    user(&files, "head -c 20M /dev/zero >f");
    let again = JobFolder::create(&job.base.path(), &crate::support::job(7), &wanted()).unwrap();
    assert!(!job.folder.path().join("4").exists());
    assert_eq!(names(job.memory()), [".ballast", ".gone"]);
    // What became of it is said when all movers have gathered.
    assert_eq!(again.left_open(), Some(4));
    again.close(4, Some("no")).unwrap();
    assert_eq!(text(job.folder.path().join("failed")), "4 no\n");
    again.ask(5, "asked", &[(0, 1)]).unwrap();
    let files = job.folder.path().join("5/files/rank-0-of-1");
    assert_eq!(device(files), device(job.memory()));
}

#[test]
fn after_the_job_nothing_is_mounted() {
    let Some(job) = Job::mounted("") else {
        return;
    };
    user(&job.ask(1), "head -c 20M /dev/zero >f");
    job.folder.remove().unwrap();
    assert!(!job.folder.path().exists());
    let progress = job.base.empty();
    assert_eq!(progress.stuck, 0);
    assert_eq!(job.base.left(), Vec::<PathBuf>::new());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let base = job.base.path();
    assert!(!mounts.contains(base.to_str().unwrap()), "{mounts}");
}

/// gpuos_mover's unit may mount and unmount nothing: it frees the memory, and what remains is for the next step or start.
#[test]
fn who_may_not_unmount_frees_the_memory() {
    const ROLE: &str = "GPUOS_TEST_EMPTIES";
    if let Ok(base) = std::env::var(ROLE) {
        let trash = Trash::open(Path::new(&base)).unwrap();
        assert!(trash.unmount().is_err(), "this process may unmount");
        while trash.step(4096).unwrap().more {}
        return;
    }
    let Some(job) = Job::mounted("") else {
        return;
    };
    user(&job.ask(1), "head -c 20M /dev/zero >f; mkdir -p a/b/c");
    job.folder.remove().unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "memory::who_may_not_unmount_frees_the_memory"]);
    let done = command.env(ROLE, job.base.path()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said}");
    let gone = fs::read_dir(job.base.path().join(".gone/jobs")).unwrap();
    let memory = gone.map(|entry| entry.unwrap().path().join("memory"));
    let memory = memory.last().expect("it is mounted still");
    let left = rustix::fs::statvfs(&memory).unwrap();
    assert_eq!(left.f_blocks, left.f_bavail, "all of it is free");
    job.base.trash().unmount().unwrap();
    assert_eq!(job.base.empty().stuck, 0);
    assert!(!memory.exists());
}
