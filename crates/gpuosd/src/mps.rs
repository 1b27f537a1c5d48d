//! Starts and ends daemons of NVIDIA's MPS for jobs and for those who share a GPU, each in a thread of its own: a program that hangs holds up
//! neither the loop nor another job.
//!
//! A daemon runs as its job's user, with none of gpuosd's rights and nothing of its environment, and in the
//! foreground (`-f`): so its number is known by the kernel's word, and not by a file that the user may write. That user can have it run what he
//! likes (ptrace(2)): so it has a control group of its own, which opens the job's GPUs alone and is killed whole at the end ([`groups`]).

pub mod groups;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::limits::{MpsClient, MpsEvent, NotEnded, Process, Serving};
use gpuos_core::wire::MPS_VARIABLES;
use gpuos_host::steps::job_processes::{Proc, Processes};

use rustix::fs::{AtFlags, statat};

use crate::clear;
use crate::in_group::{self, User};
use crate::sink::Sink;
use groups::Groups;

/// How long the daemon may take to end by itself, and again after SIGTERM and after SIGKILL.
const QUIT: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two looks whether a daemon is still there.
const WATCH: Duration = Duration::from_millis(500);
/// Where the programs of the driver find each other; nothing else of the environment is theirs.
const SEARCH: &str = "/usr/local/bin:/usr/bin:/bin";

/// This program, which empties folders of users with their rights.
const OWN: &str = "/proc/self/exe";
/// Folders that a user may have here: one for each GPU at most is used, others are left because they could not be
/// removed.
const MOST_FOLDERS: usize = 64;

/// One thing to do.
#[derive(Clone, Debug)]
pub enum Task {
    /// Start a daemon for somebody, with these GPUs by NVIDIA's ids.
    Start(MpsClient, Serving, Vec<String>),
    /// Look after one that runs.
    Adopt(MpsClient, Process),
    /// End it.
    End(MpsClient, Serving),
}

/// What starts and ends them.
#[derive(Debug)]
pub struct Runner {
    /// `--mps-command`.
    pub command: String,
    /// The folder that has one of each daemon.
    pub folder: PathBuf,
    /// A daemon has so long until programs can talk to it: a step waits 2 s for the whole answer.
    pub patience: Duration,
    /// Processes.
    pub proc: Proc,
    /// Where daemons run.
    pub groups: Groups,
    /// To the loop.
    pub to: Sink<MpsEvent>,
}

/// The folders for programs of those whom a daemon serves, in the folder of all: pipes, and logs.
pub fn folders(folder: &Path, whom: &MpsClient) -> [PathBuf; 2] {
    let own = folder.join(whom.to_string());
    [own.join("pipe"), own.join("log")]
}

/// Why a daemon is not there.
type Why<T> = Result<T, String>;

impl Runner {
    /// Does something, and tells the loop.
    pub fn begin(self: &Arc<Runner>, task: Task) {
        let runner = self.clone();
        let run = move || runner.run(task);
        if let Err(e) = thread::Builder::new().name("mps".into()).spawn(run) {
            tracing::error!("no thread for MPS: {e}");
        }
    }

    /// Ends what runs in groups of daemons that nobody serves: a gpuosd that started them was killed, and its state is lost. `known` is whom the
    /// state names.
    pub fn end_unknown(self: &Arc<Runner>, known: &BTreeSet<String>) {
        let groups = self.groups.names();
        let unknown: Vec<String> = groups.difference(known).cloned().collect();
        if unknown.is_empty() {
            return;
        }
        let runner = self.clone();
        let end = move || {
            for name in unknown {
                match runner.groups.end(&name, QUIT) {
                    Ok(()) => tracing::warn!(
                        "an MPS daemon ({name}) of a gpuosd whose state is lost was ended"
                    ),
                    Err(why) => tracing::error!(
                        "an MPS daemon ({name}) of a gpuosd whose state is lost is not ended: {why}"
                    ),
                }
            }
        };
        if let Err(e) = thread::Builder::new().name("mps".into()).spawn(end) {
            tracing::error!("no thread for MPS: {e}");
        }
    }

    /// The folders for programs of those whom a daemon serves: pipes, and logs.
    fn folders(&self, whom: &MpsClient) -> [PathBuf; 2] {
        folders(&self.folder, whom)
    }

    fn send(&self, event: MpsEvent) {
        let _ = self.to.send(event);
    }

    fn run(&self, task: Task) {
        match task {
            Task::Start(whom, serving, uuids) => match self.start(&whom, &serving, &uuids) {
                Ok((process, child)) => {
                    let told = Ok(process);
                    self.send(MpsEvent::Running {
                        whom: whom.clone(),
                        result: told,
                    });
                    self.watch(whom, process, Some(child));
                }
                Err(why) => self.send(MpsEvent::Running {
                    whom,
                    result: Err(why),
                }),
            },
            Task::Adopt(whom, process) => self.watch(whom, process, None),
            Task::End(whom, serving) => {
                let told = self.end(&whom, &serving);
                self.send(MpsEvent::Ended { whom, result: told });
            }
        }
    }

    /// The program with the user's rights, in a group that it enters by these files; the environment is the whole of it.
    fn program(&self, whom: &MpsClient, serving: &Serving, files: &[PathBuf]) -> Why<Command> {
        let mut words = self.command.split_whitespace();
        let name = words.next().ok_or("--mps-command is empty")?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = match name.contains('/') {
            true => Some(PathBuf::from(name)).filter(|path| path.is_file()),
            false => std::env::split_paths(&path)
                .map(|folder| folder.join(name))
                .find(|path| path.is_file()),
        };
        let found = found.ok_or(format!("the program {name} is not on this node"))?;
        let [pipe, log] = self.folders(whom);
        let user = User {
            uid: serving.uid,
            gid: serving.gid,
        };
        let mut command = in_group::command(Path::new(OWN), files, user, &found);
        command
            .args(words)
            .env_clear()
            .env("PATH", SEARCH)
            .env(MPS_VARIABLES[0], pipe)
            .env(MPS_VARIABLES[1], log)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(command)
    }

    fn start(
        &self,
        whom: &MpsClient,
        serving: &Serving,
        uuids: &[String],
    ) -> Why<(Process, Child)> {
        let [pipe, log] = self.folders(whom);
        self.has_few(serving.uid)?;
        let files = self.groups.make(whom, serving)?;
        let mut command = self.program(whom, serving, &files)?;
        command
            .arg("-f")
            .env("CUDA_VISIBLE_DEVICES", uuids.join(","));
        let mut made = make(&self.folder, &[&pipe, &log], serving);
        if matches!(&made, Err((_, e)) if e.kind() == io::ErrorKind::AlreadyExists) {
            // Left over by a gpuosd whose state is lost, or because it could not be removed: nobody else would ever
            // remove it.
            self.quit(whom, serving);
            self.remove(whom)?;
            made = make(&self.folder, &[&pipe, &log], serving);
        }
        let pipe = made.map_err(|(path, e)| format!("{}: {e}", path.display()))?;
        let deadline = Instant::now() + self.patience;
        let begun = command.spawn().map_err(|e| e.to_string());
        let started = begun.and_then(|mut child| match self.ready(&mut child, &pipe, deadline) {
            Ok(process) => Ok((process, child)),
            Err(why) => {
                self.stop(child.id(), None, serving.uid);
                let _ = child.kill();
                let _ = child.wait();
                Err(why)
            }
        });
        if started.is_err() {
            // What is left of it is ended at the next start at the latest.
            let _ = self.groups.end(&whom.to_string(), QUIT);
            let _ = self.remove(whom);
        }
        started.map_err(|why| format!("{}: {why}", self.command))
    }

    /// Waits until programs can talk to a daemon. Its folder was opened before it was the user's: so it is this one.
    fn ready(&self, child: &mut Child, pipe: &OwnedFd, deadline: Instant) -> Why<Process> {
        let pid = child.id();
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
                return Err(match in_group::why(status) {
                    Some(why) => why.into(),
                    None => format!("it ended at once ({status})"),
                });
            }
            if statat(pipe, "control", AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                let who = self.proc.who(pid).map_err(|e| e.to_string())?;
                let started = who.ok_or("it ended at once")?.started;
                return Ok(Process { pid, started });
            }
            thread::sleep(PAUSE);
        }
        let after = self.patience.as_millis();
        Err(format!("it was not ready within {after} ms"))
    }

    /// Waits for the end of a daemon.
    fn watch(&self, whom: MpsClient, process: Process, mut child: Option<Child>) {
        let lives = |child: &mut Option<Child>| match child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => self.is_there(process),
        };
        while lives(&mut child) {
            thread::sleep(WATCH);
        }
        self.send(MpsEvent::Died { whom, process });
    }

    fn is_there(&self, process: Process) -> bool {
        let who = self.proc.who(process.pid);
        // What cannot be read is not said to be gone.
        who.map_or(true, |who| {
            who.is_some_and(|who| who.started == process.started && !who.ended)
        })
    }

    /// Ends a daemon: as the user asks for it, then by force; and removes its folder.
    fn end(&self, whom: &MpsClient, serving: &Serving) -> Result<(), NotEnded> {
        let family = match serving.process {
            Some(one) => self.family(one.pid, Some(one.started), serving.uid),
            None => Vec::new(),
        };
        if !family.is_empty() || serving.process.is_none() {
            self.quit(whom, serving);
        }
        let gone = || family.iter().all(|one| !self.is_there(*one));
        let signals: [fn(&Proc, Process); 3] = [
            |_, _| {},
            |proc, one| drop(proc.terminate(one.pid, one.started)),
            |proc, one| drop(proc.kill(one.pid, one.started)),
        ];
        for signal in signals {
            family.iter().for_each(|one| signal(&self.proc, *one));
            let deadline = Instant::now() + QUIT;
            while !gone() && Instant::now() < deadline {
                thread::sleep(PAUSE);
            }
            if gone() {
                break;
            }
        }
        // Whoever is in its group is killed all the same.
        self.end_group(whom)?;
        match gone() {
            true => Ok(()),
            false => Err(NotEnded::Lives("its processes do not end".into())),
        }
    }

    /// Ends whatever else its user has started in the group of a daemon that is gone, and removes its folder.
    fn end_group(&self, whom: &MpsClient) -> Result<(), NotEnded> {
        let ended = self.groups.end(&whom.to_string(), QUIT);
        ended.map_err(NotEnded::Lives)?;
        self.remove(whom).map_err(NotEnded::Left)
    }

    /// Says `quit` to a daemon. Whether it heard is seen by its processes.
    fn quit(&self, whom: &MpsClient, serving: &Serving) {
        if fs::symlink_metadata(self.folder.join(whom.to_string())).is_err() {
            return;
        }
        let files = self.groups.of_end(whom);
        let Ok(mut command) = files.and_then(|files| self.program(whom, serving, &files)) else {
            return;
        };
        let Ok(mut child) = command.stdin(Stdio::piped()).spawn() else {
            return;
        };
        // Closed with it, so that the program sees the end.
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(b"quit\n");
        }
        let deadline = Instant::now() + QUIT;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
        let _ = child.kill();
        let _ = child.wait();
    }

    /// A daemon and its children, as far as they are of its user.
    fn family(&self, pid: u32, started: Option<u64>, uid: u32) -> Vec<Process> {
        let own = |pid: u32| {
            let who = self.proc.who(pid).ok().flatten()?;
            let started = who.started;
            (who.uid == uid && !who.ended).then_some(Process { pid, started })
        };
        let Some(first) = own(pid).filter(|one| started.is_none_or(|at| at == one.started)) else {
            return Vec::new();
        };
        let children = self.proc.children(pid);
        [first]
            .into_iter()
            .chain(children.into_iter().filter_map(own))
            .collect()
    }

    /// Kills a daemon that did not come up.
    fn stop(&self, pid: u32, started: Option<u64>, uid: u32) {
        for one in self.family(pid, started, uid) {
            let _ = self.proc.kill(one.pid, one.started);
        }
    }

    /// Whether a user has so few folders here that one more may be made: those that could not be removed stay.
    fn has_few(&self, uid: u32) -> Why<()> {
        let all = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let own = all.filter(|entry| entry.metadata().is_ok_and(|of| of.uid() == uid));
        match own.take(MOST_FOLDERS).count() {
            MOST_FOLDERS => Err(format!(
                "uid {uid} has {MOST_FOLDERS} folders in {} that could not be removed",
                self.folder.display()
            )),
            _ => Ok(()),
        }
    }

    /// Removes the folder of those whom one served; what links in it lead to stays.
    fn remove(&self, whom: &MpsClient) -> Why<()> {
        let name = OsString::from(whom.to_string());
        clear::remove(Path::new(OWN), &self.folder, &name, clear::TIME)
    }
}

/// Makes the folders of a daemon, the user's own. Until the last step only gpuosd's user gets in, so that nobody
/// can put a link where something is handed over. Gives the first of the inner ones.
fn make(
    all: &Path,
    inner: &[&Path; 2],
    serving: &Serving,
) -> Result<OwnedFd, (PathBuf, io::Error)> {
    let at = |path: &Path| {
        let path = path.to_path_buf();
        |e| (path, e)
    };
    match DirBuilder::new().mode(0o755).create(all) {
        Ok(()) => fs::set_permissions(all, Permissions::from_mode(0o755)).map_err(at(all))?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err((all.to_path_buf(), e)),
    }
    let is_folder = fs::symlink_metadata(all).map_err(at(all))?.is_dir();
    let own = inner[0].parent().unwrap_or(all);
    if !is_folder || own == all {
        return Err((all.to_path_buf(), io::ErrorKind::NotADirectory.into()));
    }
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder.create(own).map_err(at(own))?;
    for path in inner {
        let made = builder.create(path);
        let given = made.and_then(|()| chown(path, Some(serving.uid), Some(serving.gid)));
        given.map_err(at(path))?;
    }
    let first = File::open(inner[0]).map_err(at(inner[0]))?;
    chown(own, Some(serving.uid), Some(serving.gid)).map_err(at(own))?;
    Ok(first.into())
}
