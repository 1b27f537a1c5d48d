//! A gpuosd that a test plays, and the program that it plays with.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpuos_memory::protocol::{FromProgram, ToProgram, Uuid};

use crate::common::{Cuda, said};
use crate::shim::{MIB, folder, variables};

/// Tells the program where it writes how far it is.
const FOLDER: &str = "GPUOS_BROKER_TEST";
/// A busy machine is no fault.
pub const LIMIT: Duration = Duration::from_secs(180);

/// The connection has ended: what [`Talk::line`] says then.
pub const OVER: &str = "the program has ended";

/// The test's side of a connection.
pub struct Talk {
    pub lines: BufReader<UnixStream>,
}

impl Talk {
    pub fn accept(listener: &UnixListener) -> Talk {
        let (stream, _) = listener.accept().expect("the program connects");
        stream.set_read_timeout(Some(LIMIT)).expect("a time");
        Talk {
            lines: BufReader::new(stream),
        }
    }

    pub fn line(&mut self) -> Result<FromProgram, String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => return Err(OVER.into()),
            // It has not read all that it was told.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(OVER.into()),
            Err(error) => return Err(format!("the program says nothing: {error}")),
            Ok(_) => {}
        }
        FromProgram::parse(line.as_bytes()).map_err(|_| format!("it says {line:?}"))
    }

    /// The next message that is not about moved bytes or work.
    pub fn next(&mut self) -> Result<FromProgram, String> {
        loop {
            match self.line()? {
                FromProgram::Moved { .. }
                | FromProgram::Figures(_)
                | FromProgram::Idle
                | FromProgram::Working
                | FromProgram::Busy => {}
                other => return Ok(other),
            }
        }
    }

    /// The next word about work.
    pub fn next_of_work(&mut self) -> Result<FromProgram, String> {
        loop {
            match self.line()? {
                FromProgram::Moved { .. } | FromProgram::Figures(_) => {}
                other => return Ok(other),
            }
        }
    }

    pub fn say(&mut self, what: &ToProgram) {
        let line = what.line();
        self.lines
            .get_mut()
            .write_all(line.as_bytes())
            .expect("the program listens");
    }

    /// Hears what a new connection begins with; answers the GPU that is asked for.
    pub fn begin(&mut self, again: Option<bool>) -> Result<Uuid, String> {
        let hello = self.next()?;
        if hello != (FromProgram::Hello { version: 3 }) {
            return Err(format!("{hello:?} and no hello"));
        }
        if let Some(parked) = again {
            let told = self.next()?;
            if told != (FromProgram::Return { parked }) {
                return Err(format!("{told:?}"));
            }
        }
        match self.next()? {
            FromProgram::Ask { gpu, .. } => Ok(gpu),
            other => Err(format!("{other:?} and no ask")),
        }
    }

    /// A program that begins, has so much lent in MiB: of its GPU, of host memory, and to park in.
    pub fn lent(listener: &UnixListener, lease: [u64; 3], wait: bool) -> Result<Talk, String> {
        let mut talk = Talk::accept(listener);
        let gpu = talk.begin(None)?;
        talk.lease(gpu, lease, wait);
        Ok(talk)
    }

    pub fn lease(&mut self, gpu: Uuid, [hbm, host, refuge]: [u64; 3], wait: bool) {
        let [hbm, host, refuge] = [hbm, host, refuge].map(|mib| mib * MIB);
        self.say(&ToProgram::Lease {
            gpu,
            hbm,
            host,
            refuge,
            wait,
        });
    }
}

/// In the folder of a program: it has ended, and nothing more comes of it.
const ENDED: &str = "ended";

/// Where a program writes a byte for each round that it has done.
pub struct Progress(pub PathBuf);

impl Progress {
    /// The folder of the program.
    pub fn folder(&self) -> &Path {
        self.0.parent().expect("a folder")
    }

    pub fn rounds(&self) -> u64 {
        std::fs::metadata(&self.0).map_or(0, |file| file.len())
    }

    pub fn until_more_than(&self, rounds: u64) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        while self.rounds() <= rounds {
            let ended = self.0.with_file_name(ENDED).exists();
            if (ended && self.rounds() <= rounds) || Instant::now() >= deadline {
                return Err(format!("the program stays at {rounds} rounds"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Nothing is done for a while. A round whose work was done before may be noted late: one more byte says nothing, and two do.
    pub fn rests(&self) -> Result<(), String> {
        let (before, mut known) = (self.rounds(), Instant::now());
        let mut noted = before;
        while known.elapsed() < Duration::from_millis(200) {
            std::thread::sleep(Duration::from_millis(2));
            let rounds = self.rounds();
            if rounds > before + 1 {
                return Err("the program works although it is parked".into());
            }
            if rounds > noted {
                (noted, known) = (rounds, Instant::now());
            }
        }
        Ok(())
    }
}

/// Runs `test` in a process that has the library, with a gpuosd that `play` plays. Answers its standard error, or what
/// was found.
pub fn plays(
    test: &str,
    more: &[(&str, &str)],
    play: impl FnOnce(UnixListener, &Progress) -> Result<(), String> + Send,
) -> Result<String, String> {
    let (driver, own) = (folder(), tempfile::tempdir().expect("a folder"));
    let socket = own.path().join("socket");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let progress = Progress(own.path().join("progress"));
    let mut program = std::process::Command::new(std::env::current_exe().expect("this program"));
    program.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    program.envs(variables(driver.path(), 256, 256, "memory=256M"));
    program.env_remove("GPUOS_MEM_HBM");
    program
        .env("GPUOS_MEM_SOCKET", &socket)
        .env(FOLDER, own.path())
        .env_remove("GPUOS_NVML_STATE")
        .env_remove("CUDA_VISIBLE_DEVICES");
    program.envs(more.iter().copied());
    program.stdout(std::process::Stdio::piped());
    program.stderr(std::process::Stdio::piped());
    let mut program = program.spawn().expect("this program");
    let played = std::thread::scope(|scope| {
        let played = scope.spawn(|| play(listener, &progress));
        while !played.is_finished() {
            if matches!(program.try_wait(), Ok(Some(_))) {
                std::fs::write(own.path().join(ENDED), "").expect("a file");
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        played
            .join()
            .unwrap_or_else(|_| Err("the play failed".into()))
    });
    std::fs::write(own.path().join("end"), "").expect("a file");
    if played.is_err() {
        // It may wait for its turn.
        let _ = program.kill();
    }
    let out = program.wait_with_output().expect("its end");
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    played.map_err(|why| format!("{why}; the program said: {error}"))?;
    if !out.status.success() {
        return Err(error);
    }
    said(&out);
    Ok(error)
}

/// The folder of the program, in the program itself.
pub fn inside() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Rounds of work on so much memory, each checked, until the test says that it is enough.
pub fn work(folder: &Path, cuda: &Cuda, mib: u64) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join("progress"))
        .expect("a file");
    let count = (mib / 8) as usize;
    let parts: Vec<u64> = (0..count).map(|_| cuda.alloc(8 * MIB)).collect();
    let fill = cuda.kernel("fill");
    let mut round = 0_u64;
    while !folder.join("end").exists() {
        round += 1;
        for (at, part) in parts.iter().enumerate() {
            assert_eq!(
                cuda.launch(fill, 0, &[*part, round + at as u64, 2 * MIB]),
                0
            );
        }
        for (at, part) in parts.iter().enumerate() {
            let word = ((round + at as u64) as u32).to_le_bytes();
            for offset in [0, 4 * MIB, 8 * MIB - 4] {
                assert_eq!(cuda.download(part + offset, 4), word);
            }
        }
        file.write_all(b".").expect("a byte");
    }
}
