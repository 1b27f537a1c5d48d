//! The process that calls the driver's checkpoint calls for gpuosd, which itself does not load libcuda and waits for nobody.
//!
//! It is this program with [`FLAG`]. As root it sees that a number means the process that was meant, and holds that process by a descriptor.
//! Then it takes the rights of that process's user and group, and keeps nothing else: whatever the number means by the time of a call, it is
//! a process of the same user's. After each call it looks that the process has not ended: then the number has been its own all the time. What
//! it does it does from where the driver says that it is, so it may be killed at any point and begun anew. Its end is an exit code, and one
//! line with two numbers where the driver refused.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use gpuos_host::hardware::checkpoint::{
    Call, Checkpoints, Driver, NOT_READY, OUT_OF_MEMORY, Refused, State, has_ended,
};
use gpuos_host::steps::job_processes::{Proc, Processes};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, pidfd_open, setrlimit};

use crate::as_user;

/// The first word. [`words`] has the others.
pub const FLAG: &str = "--driver-checkpoint";

/// Between two looks at a process that is on its way, or for which there is no room.
const LOOK: Duration = Duration::from_millis(20);
/// The group of nobody, where a process does not show its own.
const NOGROUP: u32 = 65534;

/// What is to be done with a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// All of it leaves its GPUs.
    Out,
    /// It comes back, and goes on.
    Back,
}

/// A process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Its number.
    pub pid: u32,
    /// Its start, in the kernel's ticks since boot.
    pub started: u64,
    /// Its user.
    pub uid: u32,
}

/// Why it was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The words are none.
    Usage,
    /// There is no such process any more.
    Gone,
    /// The driver's library cannot be opened, or is older than these calls.
    NoDriver,
    /// It was not done in time.
    Late,
    /// The driver cannot go on with the process.
    Failed,
    /// The driver refused.
    Refused(Refused),
    /// It cannot be told which process it is, or it is another user's.
    Unseen,
    /// The rights of its user cannot be taken.
    Rights,
}

impl Stop {
    /// Codes that have nothing beside them.
    const ALONE: [Stop; 7] = [
        Stop::Usage,
        Stop::Gone,
        Stop::NoDriver,
        Stop::Late,
        Stop::Failed,
        Stop::Unseen,
        Stop::Rights,
    ];

    /// The exit code that says so.
    fn code(self) -> u8 {
        match self {
            Stop::Usage => 2,
            Stop::Gone => 3,
            Stop::NoDriver => 4,
            Stop::Late => 5,
            Stop::Failed => 6,
            Stop::Refused(_) => 7,
            Stop::Unseen => 8,
            Stop::Rights => 9,
        }
    }

    /// It would be the same if it were tried again.
    pub fn stays(self) -> bool {
        !matches!(self, Stop::Late | Stop::Gone)
    }

    /// What an exit code and the line before it say: nothing else of what a process with a user's rights writes is passed on.
    pub fn of(code: i32, line: &str) -> Option<Stop> {
        let mut known = Stop::ALONE.into_iter();
        let known = known.find(|stop| i32::from(stop.code()) == code);
        if known.is_some() || code != 7 {
            return known;
        }
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (Some(Ok(call)), Some(Ok(code)), None) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return None;
        };
        let call = *Call::ALL.get(call as usize)?;
        Some(Stop::Refused(Refused { call, code }))
    }

    /// Why, in a clause.
    pub fn why(self) -> String {
        match self {
            Stop::Usage => "gpuosd and the process that calls the driver are of different releases".into(),
            Stop::Gone => "the process has ended".into(),
            Stop::NoDriver => "the driver's library cannot be opened or has no checkpoint calls: driver 570 and later have them".into(),
            Stop::Late => "it was not done in time".into(),
            Stop::Failed => "the driver cannot go on with the process".into(),
            Stop::Refused(refused) => refused.to_string(),
            Stop::Unseen => "it cannot be told whether it is this user's process".into(),
            Stop::Rights => "the rights of its user cannot be taken".into(),
        }
    }
}

/// The words of the process, after [`FLAG`]. `parent`: who starts it; `proc`: where processes are looked up.
pub fn words(
    way: Way,
    target: &Target,
    limit: Duration,
    parent: u32,
    (proc, library): (OsString, &str),
) -> Vec<OsString> {
    let way = match way {
        Way::Out => "out",
        Way::Back => "back",
    };
    let mut words: Vec<OsString> = vec![FLAG.into(), way.into()];
    let numbers = [
        u64::from(target.pid),
        target.started,
        target.uid.into(),
        limit.as_millis() as u64,
        parent.into(),
    ];
    words.extend(numbers.map(|number| number.to_string().into()));
    words.extend([proc, library.into()]);
    words
}

struct Asked {
    way: Way,
    target: Target,
    limit: Duration,
    parent: u32,
    proc: OsString,
    library: String,
}

fn read(words: &[OsString]) -> Option<Asked> {
    let [way, pid, started, uid, limit, parent, proc, library] = words else {
        return None;
    };
    let number = |word: &OsString| word.to_str()?.parse::<u64>().ok();
    let short = |word: &OsString| number(word).and_then(|number| u32::try_from(number).ok());
    Some(Asked {
        way: match way.to_str()? {
            "out" => Way::Out,
            "back" => Way::Back,
            _ => return None,
        },
        target: Target {
            pid: short(pid)?,
            started: number(started)?,
            uid: short(uid)?,
        },
        limit: Duration::from_millis(number(limit)?),
        parent: short(parent)?,
        proc: proc.clone(),
        library: library.to_str()?.to_owned(),
    })
}

/// The process, with the words after [`FLAG`].
pub fn run(words: &[OsString]) -> ExitCode {
    match read(words).ok_or(Stop::Usage).and_then(|asked| act(&asked)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => {
            if let Stop::Refused(refused) = stop {
                println!("{} {}", refused.call as u32, refused.code);
            }
            ExitCode::from(stop.code())
        }
    }
}

fn act(asked: &Asked) -> Result<(), Stop> {
    // It does not outlive who started it, who may have died before this is said.
    let parent = i32::try_from(asked.parent).ok().and_then(Pid::from_raw);
    if !as_user::ends_with(parent) {
        return Err(Stop::Late);
    }
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    let until = Instant::now() + asked.limit;
    let proc = Proc::at(&asked.proc);
    let held = Held::of(&asked.target, &proc)?;
    let group = proc.real_group(asked.target.pid).unwrap_or(NOGROUP);
    let is_there = || !has_ended(held.0.as_fd());
    // Then the group is its own, too.
    if !is_there() {
        return Err(Stop::Gone);
    }
    as_user::become_user(asked.target.uid, group).map_err(|_| Stop::Rights)?;
    if !as_user::ends_with(parent) {
        return Err(Stop::Late);
    }
    let driver = Driver::open(&asked.library).map_err(|_| Stop::NoDriver)?;
    match asked.way {
        Way::Out => out(&driver, asked.target.pid, until, is_there),
        Way::Back => back(&driver, asked.target.pid, until, is_there),
    }
}

/// A process that is held by its descriptor.
struct Held(OwnedFd);

impl Held {
    /// [`Stop::Gone`]: there is no such process any more. [`Stop::Unseen`]: that is not known, or it is another user's.
    fn of(target: &Target, proc: &Proc) -> Result<Held, Stop> {
        let pid = i32::try_from(target.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(Stop::Gone)?;
        let held = pidfd_open(pid, PidfdFlags::empty()).map_err(|why| match why {
            Errno::SRCH => Stop::Gone,
            _ => Stop::Unseen,
        })?;
        // The number cannot have become another's since, without that the descriptor shows it.
        let who = proc.who(target.pid).map_err(|_| Stop::Unseen)?;
        let who = who.filter(|who| who.started == target.started && !who.ended);
        let who = who.ok_or(Stop::Gone)?;
        match who.uid == target.uid || who.owners.contains(&target.uid) {
            true => Ok(Held(held)),
            false => Err(Stop::Unseen),
        }
    }
}

/// Brings all of a process out of its GPUs. Where that cannot be, it runs on.
fn out(
    driver: &impl Checkpoints,
    pid: u32,
    until: Instant,
    is_there: impl Fn() -> bool,
) -> Result<(), Stop> {
    let run_on = |stop| {
        if driver.state(pid) == Ok(State::Locked) {
            let _ = driver.unlock(pid);
        }
        Err(stop)
    };
    loop {
        let state = driver.state(pid).map_err(Stop::Refused)?;
        if !is_there() {
            return run_on(Stop::Gone);
        }
        if state == State::Checkpointed {
            return Ok(());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return run_on(Stop::Late);
        }
        let done = match state {
            State::Running => driver.lock(pid, left),
            State::Locked => driver.checkpoint(pid),
            State::Failed => return Err(Stop::Failed),
            State::Between | State::Checkpointed => {
                thread::sleep(LOOK);
                Ok(())
            }
        };
        match done {
            Err(Refused {
                call: Call::Lock,
                code: NOT_READY,
            }) => return run_on(Stop::Late),
            Err(refused) => return run_on(Stop::Refused(refused)),
            Ok(()) => {}
        }
    }
}

/// Brings it back, and lets it go on.
fn back(
    driver: &impl Checkpoints,
    pid: u32,
    until: Instant,
    is_there: impl Fn() -> bool,
) -> Result<(), Stop> {
    loop {
        let state = driver.state(pid).map_err(Stop::Refused)?;
        if !is_there() {
            return Err(Stop::Gone);
        }
        if state == State::Running {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Stop::Late);
        }
        let done = match state {
            State::Checkpointed => driver.restore(pid),
            State::Locked => driver.unlock(pid),
            State::Failed => return Err(Stop::Failed),
            State::Between | State::Running => {
                thread::sleep(LOOK);
                Ok(())
            }
        };
        match done {
            // Who gave way may not be free yet.
            Err(Refused {
                call: Call::Restore,
                code: OUT_OF_MEMORY,
            }) => thread::sleep(LOOK),
            Err(refused) => return Err(Stop::Refused(refused)),
            Ok(()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::fs;

    use super::*;

    /// A driver that does what it is asked in the right order, and refuses what a test says.
    struct Plays {
        state: Cell<State>,
        refuses: Cell<Option<(Call, u32, usize)>>,
        asked: RefCell<Vec<Call>>,
    }

    impl Plays {
        fn at(state: State) -> Plays {
            Plays {
                state: Cell::new(state),
                refuses: Cell::new(None),
                asked: RefCell::default(),
            }
        }

        fn go(&self, call: Call, from: State, to: State) -> Result<(), Refused> {
            self.asked.borrow_mut().push(call);
            if let Some((what, code, times)) = self.refuses.get()
                && what == call
                && times > 0
            {
                self.refuses.set(Some((what, code, times - 1)));
                return Err(Refused { call, code });
            }
            assert_eq!(self.state.get(), from, "{call:?}");
            self.state.set(to);
            Ok(())
        }
    }

    impl Checkpoints for Plays {
        fn state(&self, _: u32) -> Result<State, Refused> {
            Ok(self.state.get())
        }

        fn lock(&self, _: u32, limit: Duration) -> Result<(), Refused> {
            assert!(!limit.is_zero());
            self.go(Call::Lock, State::Running, State::Locked)
        }

        fn checkpoint(&self, _: u32) -> Result<(), Refused> {
            self.go(Call::Checkpoint, State::Locked, State::Checkpointed)
        }

        fn restore(&self, _: u32) -> Result<(), Refused> {
            self.go(Call::Restore, State::Checkpointed, State::Locked)
        }

        fn unlock(&self, _: u32) -> Result<(), Refused> {
            self.go(Call::Unlock, State::Locked, State::Running)
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Whoever did this before may have been killed at any point.
    #[test]
    fn it_goes_on_from_where_the_driver_is() {
        let all = [State::Running, State::Locked, State::Checkpointed];
        for (count, state) in all.into_iter().enumerate() {
            let driver = Plays::at(state);
            assert_eq!(out(&driver, 1, soon(), || true), Ok(()));
            assert_eq!(driver.state.get(), State::Checkpointed);
            assert_eq!(driver.asked.borrow().len(), 2 - count);
            let driver = Plays::at(state);
            assert_eq!(back(&driver, 1, soon(), || true), Ok(()));
            assert_eq!(driver.state.get(), State::Running);
            assert_eq!(driver.asked.borrow().len(), count);
        }
        let driver = Plays::at(State::Failed);
        assert_eq!(out(&driver, 1, soon(), || true), Err(Stop::Failed));
        assert_eq!(back(&driver, 1, soon(), || true), Err(Stop::Failed));
    }

    #[test]
    fn who_cannot_be_brought_out_runs_on() {
        for (call, code, stop) in [
            (Call::Lock, NOT_READY, None),
            (Call::Lock, 801, Some(Call::Lock)),
            (Call::Checkpoint, 801, Some(Call::Checkpoint)),
        ] {
            let driver = Plays::at(State::Running);
            driver.refuses.set(Some((call, code, 1)));
            let stop = stop.map_or(Stop::Late, |call| Stop::Refused(Refused { call, code }));
            assert_eq!(out(&driver, 1, soon(), || true), Err(stop));
            assert_eq!(driver.state.get(), State::Running);
        }
        // Its time is over, or it has ended, when it is locked.
        let driver = Plays::at(State::Locked);
        assert_eq!(out(&driver, 1, Instant::now(), || true), Err(Stop::Late));
        assert_eq!(driver.state.get(), State::Running);
        let driver = Plays::at(State::Locked);
        assert_eq!(out(&driver, 1, soon(), || false), Err(Stop::Gone));
        assert_eq!(driver.state.get(), State::Running);
    }

    #[test]
    fn who_has_no_room_yet_is_tried_again_until_its_time_is_over() {
        let driver = Plays::at(State::Checkpointed);
        driver.refuses.set(Some((Call::Restore, OUT_OF_MEMORY, 3)));
        assert_eq!(back(&driver, 1, soon(), || true), Ok(()));
        let driver = Plays::at(State::Checkpointed);
        driver
            .refuses
            .set(Some((Call::Restore, OUT_OF_MEMORY, usize::MAX)));
        let until = Instant::now() + Duration::from_millis(50);
        assert_eq!(back(&driver, 1, until, || true), Err(Stop::Late));
        assert_eq!(driver.state.get(), State::Checkpointed);
    }

    #[test]
    fn words_are_read_as_they_were_written_and_others_are_none() {
        let target = Target {
            pid: 7,
            started: 70,
            uid: 1000,
        };
        let limit = Duration::from_millis(1500);
        let from = ("/proc".into(), "libcuda.so.1");
        let words = words(Way::Back, &target, limit, 3, from);
        assert_eq!(words[0], FLAG);
        let asked = read(&words[1..]).unwrap();
        assert_eq!((asked.way, asked.target), (Way::Back, target));
        assert_eq!((asked.limit, asked.parent), (limit, 3));
        for (at, wrong) in [(1, "in"), (2, "-1"), (3, ""), (4, "4294967296"), (5, "1s")] {
            let mut words = words.clone();
            words[at] = wrong.into();
            assert!(read(&words[1..]).is_none(), "{wrong}");
        }
        assert!(read(&words).is_none() && read(&words[2..]).is_none());
    }

    #[test]
    fn of_what_it_says_numbers_alone_count() {
        let refused = Stop::Refused(Refused {
            call: Call::Checkpoint,
            code: 801,
        });
        assert_eq!(Stop::of(7, "3 801\n"), Some(refused));
        assert_eq!(refused.why(), "cuCheckpointProcessCheckpoint answered 801");
        for (code, line) in [
            (7, ""),
            (7, "3"),
            (7, "6 801"),
            (7, "3 801 all is well"),
            (7, "3 \u{1b}[2J"),
            (1, "3 801"),
            (101, ""),
        ] {
            assert_eq!(Stop::of(code, line), None, "{code} {line:?}");
        }
        for stop in Stop::ALONE {
            assert_eq!(Stop::of(stop.code().into(), "x"), Some(stop));
        }
    }

    /// Its number alone is nothing: another one may have it by now.
    #[test]
    fn a_process_is_held_only_if_it_is_the_one_that_was_meant() {
        let proc = Proc::at("/proc");
        let who = proc.who(std::process::id()).unwrap().unwrap();
        let own = Target {
            pid: std::process::id(),
            started: who.started,
            uid: who.uid,
        };
        assert!(Held::of(&own, &proc).is_ok());
        let later = Target {
            started: who.started + 1,
            ..own
        };
        let of_another = Target {
            uid: who.uid + 1,
            ..own
        };
        let nobody = Target { pid: 0, ..own };
        for (wrong, why) in [
            (later, Stop::Gone),
            (nobody, Stop::Gone),
            (of_another, Stop::Unseen),
        ] {
            assert_eq!(Held::of(&wrong, &proc).err(), Some(why), "{wrong:?}");
        }
        // Who cannot be looked at may be there still.
        let unread = tempfile::tempdir().unwrap();
        fs::create_dir_all(unread.path().join(own.pid.to_string()).join("stat")).unwrap();
        let unread = Proc::at(unread.path());
        assert_eq!(Held::of(&own, &unread).err(), Some(Stop::Unseen));
    }
}
