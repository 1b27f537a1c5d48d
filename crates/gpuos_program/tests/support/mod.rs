//! The mover's side of the protocol of docs/user/checkpoint-files.md, for one node, as a thread over a folder in `/tmp`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Long enough on any machine; only a test that fails waits for that.
const PATIENCE: Duration = Duration::from_secs(120);

/// Plays the mover of a job until it is dropped.
pub struct Mover {
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
    _folder: TempDir,
}

/// What a rank that joins is told.
#[derive(Clone)]
enum Refusal {
    Silent,
    Sentence(String),
}

#[derive(Default)]
struct State {
    ends: bool,
    refusal: Option<Refusal>,
    size: Option<u16>,
    /// The newest nonce of each rank of this epoch, and whether it was answered.
    joined: BTreeMap<u16, (u64, bool)>,
    /// The newest nonce of each rank that was answered in any epoch.
    answered: BTreeMap<u16, u64>,
    last: u32,
    committed: Option<u32>,
    /// Those before it.
    older: Vec<u32>,
    /// Files by which ranks have refused, with what they say.
    refused: BTreeMap<String, String>,
    failures: BTreeMap<u32, String>,
    making: Option<Making>,
    told: usize,
}

struct Making {
    number: u32,
    fails: Option<String>,
}

impl Mover {
    /// A job that has made no checkpoint.
    pub fn start() -> Mover {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("job");
        fs::create_dir_all(path.join("ranks")).expect("a folder");
        fs::create_dir_all(folder.path().join("store")).expect("a folder");
        let state = Arc::new(Mutex::new(State::default()));
        let thread = {
            let (state, path) = (state.clone(), path.clone());
            thread::spawn(move || {
                loop {
                    let mut state = state.lock().expect("not poisoned");
                    if state.ends {
                        return;
                    }
                    state.step(&path);
                    drop(state);
                    thread::sleep(Duration::from_millis(2));
                }
            })
        };
        Mover {
            state,
            thread: Some(thread),
            path,
            _folder: folder,
        }
    }

    /// `GPUOS_CHECKPOINT_DIR`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on nobody who joins is answered.
    pub fn silent(&self) {
        self.state().refusal = Some(Refusal::Silent);
    }

    /// From now on everybody who joins is told that it failed.
    pub fn refuse(&self, why: &str) {
        self.state().refusal = Some(Refusal::Sentence(why.into()));
    }

    /// Waits until all ranks have joined and were answered, asks for a checkpoint and gives its number.
    pub fn ask(&self, reason: &str) -> u32 {
        self.begin(reason, None)
    }

    /// The same; it will fail when all are ready.
    pub fn ask_in_vain(&self, reason: &str, why: &str) -> u32 {
        self.begin(reason, Some(why.into()))
    }

    fn begin(&self, reason: &str, fails: Option<String>) -> u32 {
        self.until("all ranks have joined", |state| {
            state.complete() && state.making.is_none()
        });
        let mut state = self.state();
        state.last += 1;
        let number = state.last;
        for rank in state.joined.keys() {
            let size = state.size.expect("somebody has joined");
            let files = format!("{number}/files/rank-{rank}-of-{size}");
            fs::create_dir_all(self.path.join(files)).expect("a folder");
        }
        write(&self.path, "request", &format!("{number} {reason}"));
        state.making = Some(Making { number, fails });
        number
    }

    /// Gives up the checkpoint that is being made, as when a program takes too long.
    pub fn give_up(&self, why: &str) {
        let mut state = self.state();
        let making = state.making.take().expect("one is being made");
        state.fail(&self.path, making.number, why);
    }

    /// Waits until a checkpoint has ended; what `commit` or `failed` say of it.
    pub fn ended(&self, number: u32) -> Result<(), String> {
        self.until("the checkpoint has ended", |state| {
            state.committed >= Some(number) || state.failures.contains_key(&number)
        });
        match self.state().failures.get(&number) {
            Some(why) => Err(why.clone()),
            None => Ok(()),
        }
    }

    /// Where the files of a rank are kept.
    pub fn kept(&self, number: u32, rank: u16) -> PathBuf {
        self.store().join(format!("{number}/{rank}"))
    }

    /// What ranks have said when they refused what they were given.
    pub fn refused(&self) -> Vec<String> {
        self.state().refused.values().cloned().collect()
    }

    /// How many ranks have been told how to start, over all starts.
    pub fn answered(&self) -> usize {
        self.state().told
    }

    /// Waits until so many have been told.
    pub fn until_answered(&self, ranks: usize) {
        self.until("the program has started", |state| state.told == ranks);
    }

    /// A new run of the job: nobody has joined, and the folder is as it was at first.
    pub fn restart(&self) {
        let mut state = self.state();
        state.joined.clear();
        state.answered.clear();
        state.size = None;
        state.making = None;
        fs::remove_dir_all(&self.path).expect("removed");
        fs::create_dir_all(self.path.join("ranks")).expect("a folder");
    }

    fn store(&self) -> PathBuf {
        self.path.parent().expect("a parent").join("store")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }

    fn until(&self, what: &str, met: impl Fn(&State) -> bool) {
        let begun = Instant::now();
        while !met(&self.state()) {
            assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        if let Ok(mut state) = self.state.lock() {
            state.ends = true;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    fn complete(&self) -> bool {
        let all = self.size.map(usize::from) == Some(self.joined.len());
        all && self.joined.values().all(|(_, answered)| *answered)
    }

    fn step(&mut self, path: &Path) {
        let entries = fs::read_dir(path.join("ranks")).into_iter().flatten();
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let names = entries.map(|entry| name(entry).into_string().expect("a name of the protocol"));
        // One that is not finished yet begins with a point.
        let (refused, joins): (Vec<String>, Vec<String>) = names
            .filter(|name| !name.starts_with('.'))
            .partition(|name| name.starts_with("refused."));
        for name in refused {
            self.take_refused(path, name);
        }
        for name in joins {
            self.join(path, &name);
        }
        let all = self.size.map(usize::from) == Some(self.joined.len());
        if all && self.making.is_none() {
            self.answer(path);
        }
        if let Some(Making { number, .. }) = self.making {
            let ready = |rank: &u16| path.join(format!("{number}/ready.{rank}")).exists();
            if all && self.joined.keys().all(ready) {
                self.end(path);
            }
        }
    }

    /// A rank that joins anew begins an epoch: all have to, and what the program has not finished is given up.
    fn join(&mut self, path: &Path, name: &str) {
        // What a rank asks for is the test's to give.
        if name.starts_with("ask.") {
            return;
        }
        let parts: Vec<u64> = name
            .split('.')
            .map(|part| {
                let plain = part == "0" || !part.starts_with('0');
                assert!(plain && part.len() <= 19, "{name}");
                part.parse().unwrap_or_else(|_| panic!("{name}"))
            })
            .collect();
        let [rank, size, nonce] = parts[..] else {
            panic!("{name}");
        };
        let (rank, size) = (rank as u16, size as u16);
        assert!(rank < size, "{name}");
        let known = self.joined.get(&rank).map(|(nonce, _)| *nonce);
        if known >= Some(nonce) || self.answered.get(&rank) >= Some(&nonce) {
            return;
        }
        if known.is_some() || self.size.is_some_and(|known| known != size) {
            self.joined.clear();
            if let Some(making) = self.making.take() {
                self.fail(path, making.number, "the program has started anew");
            }
        }
        self.size = Some(size);
        self.joined.insert(rank, (nonce, false));
    }

    /// All ranks that were given it may refuse it; it goes once.
    fn take_refused(&mut self, path: &Path, name: String) {
        let parts: Vec<&str> = name.split('.').collect();
        let [_, rank, nonce] = parts[..] else {
            panic!("{name}");
        };
        let (rank, nonce): (u16, u64) = (
            rank.parse().expect("a rank"),
            nonce.parse().expect("a nonce"),
        );
        let given =
            fs::read_to_string(path.join(format!("start.{rank}.{nonce}"))).expect("an answer");
        if self.refused.contains_key(&name) {
            return;
        }
        let said = fs::read_to_string(path.join("ranks").join(&name)).expect("a line");
        self.refused.insert(name, said.trim_end().into());
        let given = given
            .trim_end()
            .strip_prefix("restore ")
            .map(|it| it.parse().expect("a number"));
        assert!(given.is_some(), "it was given none");
        if self.committed == given {
            self.committed = self.older.pop();
            if self.committed.is_none() {
                self.refusal = Some(Refusal::Sentence("no checkpoint can be restored".into()));
            }
        }
    }

    fn answer(&mut self, path: &Path) {
        let refusal = self.refusal.clone();
        for (rank, (nonce, answered)) in &mut self.joined {
            if *answered || matches!(refusal, Some(Refusal::Silent)) {
                continue;
            }
            let line = match (&refusal, self.committed) {
                (Some(Refusal::Sentence(why)), _) => format!("failed {why}"),
                (_, None) => "new".into(),
                (_, Some(number)) => {
                    let kept = path
                        .with_file_name("store")
                        .join(format!("{number}/{rank}"));
                    copy(&kept, &path.join(format!("restore.{rank}.{nonce}")));
                    format!("restore {number}")
                }
            };
            write(path, &format!("start.{rank}.{nonce}"), &line);
            self.told += 1;
            *answered = true;
            self.answered.insert(*rank, *nonce);
        }
    }

    fn end(&mut self, path: &Path) {
        let Some(Making { number, fails }) = self.making.take() else {
            return;
        };
        let size = self.size.unwrap_or(0);
        for rank in self.joined.keys() {
            let files = path.join(format!("{number}/files/rank-{rank}-of-{size}"));
            let kept = path
                .with_file_name("store")
                .join(format!("{number}/{rank}"));
            copy(&files, &kept);
        }
        write(path, "taken", &number.to_string());
        if let Some(why) = fails {
            return self.fail(path, number, &why);
        }
        fs::remove_dir_all(path.join(number.to_string())).expect("removed");
        write(path, "commit", &number.to_string());
        fs::remove_file(path.join("request")).expect("removed");
        self.older.extend(self.committed.replace(number));
    }

    fn fail(&mut self, path: &Path, number: u32, why: &str) {
        let _ = fs::remove_dir_all(path.join(number.to_string()));
        write(path, "failed", &format!("{number} {why}"));
        let _ = fs::remove_file(path.join("request"));
        self.failures.insert(number, why.into());
    }
}

/// All files of the mover appear whole.
fn write(path: &Path, name: &str, line: &str) {
    let temporary = path.join(format!(".{name}.new"));
    fs::write(&temporary, format!("{line}\n")).expect("written");
    fs::rename(temporary, path.join(name)).expect("renamed");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).expect("copied")),
        }
    }
}

/// The repository.
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository")
}

/// What a counter of examples/checkpoint has saved.
pub fn count(mover: &Mover, number: u32) -> Option<u64> {
    let kept = mover.kept(number, 0);
    // The one in Python keeps `{"count": 7}`.
    let text = fs::read_to_string(kept.join("count"));
    let text = text.or_else(|_| fs::read_to_string(kept.join("state.json")));
    let text = text.ok()?;
    text.trim_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .ok()
}

/// Runs a counter of examples/checkpoint through checkpoints, an end, a crash and what follows; it counts to a million.
pub fn run_counter(command: impl Fn() -> Command) {
    let mover = Mover::start();
    let start = || {
        let mut command = command();
        for name in FOREIGN {
            command.env_remove(name);
        }
        let command = command
            .env("GPUOS_CHECKPOINT_DIR", mover.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Program(Some(command.spawn().expect("starts")))
    };
    let saved = |number| count(&mover, number).expect("it saves a number");

    let program = start();
    let first = mover.ask("interval");
    mover.ended(first).expect("committed");
    let second = mover.ask_in_vain("asked", "node 3 is away");
    assert_eq!(mover.ended(second), Err("node 3 is away".into()));
    let third = mover.ask("end");
    mover.ended(third).expect("committed");
    let (out, errors) = program.ends();
    assert!(out.starts_with("new\nsaved 1 at "), "{out}{errors}");
    assert!(
        out.ends_with(&format!("saved 3 at {}\n", saved(third))),
        "{out}{errors}"
    );
    assert!(saved(first) < saved(third));

    // Another run of the job, whose program dies. The next one goes on from what is committed.
    mover.restart();
    let program = start();
    let fourth = mover.ask("interval");
    mover.ended(fourth).expect("committed");
    assert!(saved(third) < saved(fourth));
    drop(program);
    let program = start();
    mover.until_answered(3);
    mover.ended(mover.ask("end")).expect("committed");
    let (out, errors) = program.ends();
    let restored = format!("restored checkpoint {fourth} at {}\n", saved(fourth));
    assert!(out.starts_with(&restored), "{out}{errors}");
}

/// Variables of a launcher or of Slurm that the tests may run under.
const FOREIGN: [&str; 10] = [
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "RANK",
    "WORLD_SIZE",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
];

/// A program that is killed if the test does not wait for its end.
struct Program(Option<Child>);

impl Program {
    /// Standard output and standard error, once it has ended well.
    fn ends(mut self) -> (String, String) {
        let out = self.0.take().expect("runs").wait_with_output();
        let out = out.expect("ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (said, errors) = (text(&out.stdout), text(&out.stderr));
        assert!(out.status.success(), "{}: {said}{errors}", out.status);
        (said, errors)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
