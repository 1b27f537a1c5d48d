//! In slurmstepd: has gpuos_mover of this node prepare the folder by which a program of a job with `--gpuos-checkpoint` makes
//! checkpoints.
//!
//! Nothing here can fail a step: without an answer it runs without checkpoints, and its user is told. Of the answer nothing but one
//! path is taken.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpuos_config::options::{is_off, parse_checkpoint, parse_spares};
use gpuos_core::step::StepId;
use gpuos_core::wire::{CHECKPOINT_VARIABLE, CheckpointRequest, Code, Request};
use slurm_ffi::spank::Spank;

use crate::ahead::{Ahead, was_here};
use crate::daemon::{self, Answer};
use crate::{limits, memory, messages};

/// Variable by which steps learn what their job asked for.
pub const JOB_CHECKPOINT: &CStr = c"GPUOS_JOB_CHECKPOINT";

/// Variable by which the job's script and its steps learn how many spare nodes the job has.
pub const JOB_SPARES: &CStr = c"GPUOS_JOB_SPARES";

/// Variable by which `gpuos run` says that a step is the job's program, and how often it has started it. On which nodes slurmctld is asked.
const RUN_START: &CStr = c"GPUOS_RUN_START";

/// gpuos_mover's socket, unless plugstack.conf names another: `spank_gpuos.so mover=PATH`, with `%n` for the name of the node.
const SOCKET: &str = "/run/gpuos/gpuos_mover.sock";

/// Where the mover makes the folders of jobs, unless plugstack.conf names another place: `jobs=PATH`, in the same way.
const JOBS: &str = "/var/lib/gpuos/jobs";

/// How often Slurm has started the job again; it is not there before it has.
const RESTARTS: &CStr = c"SLURM_RESTART_COUNT";

/// How long a step waits for a mover that is not there: one that is started anew is back by then.
const COMES_BACK: Duration = Duration::from_secs(2);

/// How long a step waits for a mover on whose socket nobody listens, and for the answer of one that has taken the question: that may have
/// to wait for slurmctld. It comes after what gpuosd is waited for, and both stay below slurmd's UnkillableStepTimeout together.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(12));

/// How long it waits before it asks a mover again that has much to do, or is not there.
const AGAIN: Duration = Duration::from_millis(250);

/// The options that Slurm handed to this slurmstepd: checkpoints, and spare nodes.
static NOTED: [Mutex<Option<String>>; 2] = [const { Mutex::new(None) }; 2];

/// Takes note of the option's value.
pub fn note(value: &str) {
    *noted(0) = Some(value.to_owned());
}

/// Takes note of how many spare nodes there are.
pub fn note_spares(value: &str) {
    *noted(1) = Some(value.to_owned());
}

fn noted(which: usize) -> MutexGuard<'static, Option<String>> {
    NOTED[which].lock().unwrap_or_else(PoisonError::into_inner)
}

/// The socket, and the folder of all jobs, that the plugin's arguments name.
///
/// # Safety
/// As [`daemon::argument`].
pub unsafe fn places(argc: c_int, argv: *const *mut c_char) -> (String, String) {
    // SAFETY: promised by the caller.
    let [socket, jobs] =
        ["mover", "jobs"].map(|name| unsafe { daemon::argument(argc, argv, name) });
    (
        socket.unwrap_or_else(|| SOCKET.to_owned()),
        jobs.unwrap_or_else(|| JOBS.to_owned()),
    )
}

/// What the step's job asked for, as it was given; `whole_job` is the step of a batch script or of salloc's shell.
pub fn of_job(spank: Spank<'_>, whole_job: bool) -> Option<String> {
    chosen(noted(0).clone(), spank.getenv(JOB_CHECKPOINT), whole_job)
}

/// The same of its spare nodes, if that is a number of them.
pub fn spares_of_job(spank: Spank<'_>, whole_job: bool) -> Option<String> {
    let value = chosen(noted(1).clone(), spank.getenv(JOB_SPARES), whole_job);
    value.filter(|value| parse_spares(value).is_ok())
}

/// A step's own option counts where its command has made the job, and left no variable, alone.
fn chosen(noted: Option<String>, handed: Option<String>, whole_job: bool) -> Option<String> {
    let handed = handed.filter(|value| !value.is_empty());
    match whole_job {
        true => noted.or(handed),
        false => handed.or(noted),
    }
}

/// The value that the mover is told, if it asks for checkpoints. What got around the check of the commands is no wish.
fn wish(value: Option<String>) -> Option<String> {
    let value = value.filter(|value| !is_off(value))?;
    parse_checkpoint(&value).ok().map(|asked| asked.to_string())
}

/// Which start of the job's program a step is, by the word of `gpuos run`.
fn start(handed: Option<String>, whole_job: bool) -> Option<u32> {
    let start: u32 = handed.filter(|_| !whole_job)?.parse().ok()?;
    (start > 0).then_some(start)
}

/// Has the folder prepared, and lets the step's tasks find it.
pub fn prepare(spank: Spank<'_>, (socket, jobs): (&str, &str), whole_job: bool) {
    let start = start(spank.getenv(RUN_START), whole_job);
    // Steps that the program starts are not the program.
    spank.unsetenv(RUN_START);
    let Some(asked) = wish(of_job(spank, whole_job)) else {
        return;
    };
    let (Some(job), Some(step)) = (spank.job_id(), spank.step_id()) else {
        return;
    };
    let (Some(uid), Some(gid)) = (spank.job_uid(), spank.job_gid()) else {
        return;
    };
    let id = StepId {
        job: job.into(),
        step,
    };
    if id.is_extern() {
        return;
    }
    if start.is_none() && spares_of_job(spank, whole_job).is_some() {
        // Movers are to know on which nodes the program is, and that says `gpuos run` alone. The script is not the program.
        if !whole_job {
            limits::keep_note(&String::from(messages::not_the_program()));
        }
        spank.unsetenv(&CString::new(CHECKPOINT_VARIABLE).unwrap_or_default());
        return;
    }
    let restarts = spank.getenv(RESTARTS).and_then(|text| text.parse().ok());
    let ahead = Ahead {
        job,
        owner: (uid, gid),
        run: restarts.unwrap_or(0),
        asked: &asked.clone(),
    };
    let what = CheckpointRequest::Step {
        id,
        uid,
        gid,
        asked,
        start,
    };
    let jobs = Path::new(jobs);
    // On which nodes a start of the program is, the mover has to find out first.
    let told = match was_here(jobs) && start.is_none() {
        true => ask_or_go_ahead(socket, &what, PATIENCE, || ahead.make(jobs)),
        false => ask(socket, what, PATIENCE),
    };
    for note in told.notes {
        limits::keep_note(&note);
    }
    let name = CString::new(CHECKPOINT_VARIABLE).unwrap_or_default();
    match told.folder {
        Some(folder) => {
            let mib = parse_checkpoint(ahead.asked)
                .ok()
                .and_then(|it| it.memory_mib);
            let made = mib.map_or(Ok(()), |mib| memory::prepare(Path::new(&folder), mib));
            if let Err(why) = made {
                limits::keep_note(&String::from(messages::not_in_memory(why)));
            }
            spank.setenv(&name, &folder)
        }
        // A step inherits the batch script's environment, which is that of another node.
        None => spank.unsetenv(&name),
    };
}

/// What comes of the question.
#[derive(Default, Debug)]
struct Told {
    /// For the step's user.
    notes: Vec<String>,
    /// The folder of the job.
    folder: Option<String>,
    /// There is a mover, and it has not answered in time.
    late: bool,
}

impl Told {
    fn note(text: impl Into<String>) -> Told {
        Told {
            notes: vec![text.into()],
            ..Told::default()
        }
    }
}

/// Asks the mover. While it is away for a moment, or does not answer in time, `make` makes the folder, in which it answers later: a program that
/// began from the start could do so beside ranks that go on from a checkpoint.
fn ask_or_go_ahead(
    socket: &str,
    what: &CheckpointRequest,
    patience: (Duration, Duration),
    make: impl Fn() -> Option<String>,
) -> Told {
    let away = |folder| Told {
        notes: vec![messages::mover_is_away().into()],
        folder: Some(folder),
        late: true,
    };
    if !comes_back(socket)
        && let Some(folder) = make()
    {
        // It may have come back just before, and looked for such folders then.
        return match daemon::listens(socket) {
            true => match ask(socket, what.clone(), patience) {
                told if told.late => away(folder),
                told => told,
            },
            false => away(folder),
        };
    }
    let told = ask(socket, what.clone(), patience);
    match told.late {
        true => make().map_or(told, away),
        false => told,
    }
}

/// Whether somebody listens there within a moment.
fn comes_back(socket: &str) -> bool {
    let deadline = Instant::now() + COMES_BACK;
    while !daemon::listens(socket) {
        if Instant::now() + AGAIN > deadline {
            return false;
        }
        std::thread::sleep(AGAIN);
    }
    true
}

/// Asks the mover. One that says that it has much to do, or does not answer, is asked again, as long as there is time: one that is
/// started anew is back in a moment, and a rank without it would begin from the start. There is more time where it takes the question.
fn ask(path: &str, what: CheckpointRequest, (away, there): (Duration, Duration)) -> Told {
    let begun = Instant::now();
    let mut deadline = begun + away;
    let mut late = false;
    let request = Request::Checkpoint { what };
    loop {
        let socket = daemon::send(path, &request);
        if socket.is_some() {
            deadline = deadline.max(begun + there);
            late = true;
        }
        let answer = socket.and_then(|socket| daemon::answer(&socket, deadline));
        return match answer {
            Some(Answer::Prepared {
                notes,
                mut environment,
                failed,
            }) => {
                let folder = environment.remove(CHECKPOINT_VARIABLE);
                let folder = folder.filter(|path| daemon::is_path(path));
                let mut told = Told {
                    notes,
                    folder,
                    late: false,
                };
                let why = failed.map(messages::no_checkpoints);
                told.notes.extend(why.map(String::from));
                if told.folder.is_none() && told.notes.is_empty() {
                    return Told::note(messages::no_folder());
                }
                told
            }
            Some(Answer::Refused(Code::Busy, _)) if Instant::now() + AGAIN < deadline => {
                std::thread::sleep(AGAIN);
                continue;
            }
            Some(Answer::Refused(code, why)) => Told {
                late: code == Code::Busy,
                ..Told::note(messages::no_checkpoints(why))
            },
            Some(Answer::Unknown) => Told::note(messages::no_folder()),
            None if Instant::now() + AGAIN < deadline => {
                std::thread::sleep(AGAIN);
                continue;
            }
            None => Told {
                late,
                ..Told::note(messages::no_mover())
            },
        };
    }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
