//! `gpuos wlm submit-filter`: what a job says to gpuos is checked before it is taken.

use std::ffi::OsString;
use std::io::{BufRead, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gpuos_model::screen;
use gpuos_wlm::gridengine::jsv::{Jsv, Step};
use gpuos_wlm::torque::Submission;
use gpuos_wlm::{batch, lsf};

use super::gpus::text_of;
use crate::cli::{Manager, WlmFilterArgs};

/// The most of a job script of Torque in which options are looked for.
const MOST_BYTES: u64 = 64 << 20;

/// How long nothing must come after a line that says that a job is complete: sge_qmaster waits for the answer then, and what
/// comes at once is an argument of the job that looks like lines of the protocol.
const SILENCE: Duration = Duration::from_millis(20);

/// How qsub of Torque takes a refusal.
const TORQUE_REFUSES: u8 = 255;

/// Checks one job, or for Grid Engine one after the other.
///
/// # Errors
/// Input that cannot be read.
pub fn run(args: &WlmFilterArgs) -> Result<u8> {
    if args.manager != Manager::Torque && !args.arguments.is_empty() {
        bail!("arguments of qsub are for Torque's filter: leave them out");
    }
    match args.manager {
        Manager::Gridengine => verify(),
        Manager::Lsf => Ok(lsf()),
        Manager::Torque => torque(&args.arguments),
    }
}

fn answer(checked: Result<(), String>, refuses: u8) -> u8 {
    match checked {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("gpuos: {}", screen::lines(&why));
            refuses
        }
    }
}

/// The wish in the environment of who submits a job.
fn own_wish() -> String {
    let own = std::env::var_os(batch::VARIABLE).unwrap_or_default();
    own.to_string_lossy().into_owned()
}

fn lsf() -> u8 {
    let file = std::env::var_os("LSB_SUB_PARM_FILE").map(PathBuf::from);
    let parameters = file.and_then(|file| text_of(&file).ok());
    let list = parameters.and_then(|text| lsf::environment_list(&text));
    let wish = match list {
        Some(list) => lsf::wish_left(&list, &own_wish()),
        None => own_wish(),
    };
    answer(batch::wish(&wish).map(|_| ()), 1)
}

/// The script goes on as it came, where it is not refused.
fn torque(arguments: &[OsString]) -> Result<u8> {
    let mut script = Vec::new();
    let mut stdin = std::io::stdin().lock();
    let head = stdin.by_ref().take(MOST_BYTES).read_to_end(&mut script);
    head.context("cannot read the job script")?;
    let words = arguments.iter().map(|word| word.to_string_lossy());
    let words: Vec<String> = words.map(|word| word.into_owned()).collect();
    let submission = Submission::read(&String::from_utf8_lossy(&script), &words);
    let code = answer(submission.check(&own_wish()), TORQUE_REFUSES);
    if code == 0 {
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(&script);
        let written = written.and_then(|()| std::io::copy(&mut stdin, &mut stdout));
        let written = written.and_then(|_| stdout.flush());
        written.context("cannot hand the job script back")?;
    }
    Ok(code)
}

/// Speaks with sge_qmaster.
fn verify() -> Result<u8> {
    let (pieces, came) = mpsc::sync_channel(8);
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        loop {
            let piece = match stdin.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.unwrap_or_default().to_vec(),
            };
            stdin.consume(piece.len());
            if piece.is_empty() || pieces.send(piece).is_err() {
                break;
            }
        }
    });
    let say = |said: &[String]| {
        let mut stdout = std::io::stdout().lock();
        let text: String = said.iter().map(|line| format!("{line}\n")).collect();
        let written = stdout.write_all(text.as_bytes());
        written.and_then(|()| stdout.flush()).is_ok()
    };
    let mut jsv = Jsv::default();
    let mut begun = Vec::new();
    while let Ok(piece) = came.recv() {
        let mut rest = &piece[..];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            begun.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            let line = String::from_utf8_lossy(&begun).into_owned();
            begun.clear();
            let heard = match jsv.line(&line) {
                Step::Wait => true,
                Step::Say(said) => say(&said),
                // What came together with it needs no clock.
                Step::Complete(said) => {
                    let silent = || came.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout);
                    rest.is_empty() && silent() && say(&said)
                }
                Step::End => false,
            };
            if !heard {
                return Ok(0);
            }
        }
        begun.extend_from_slice(rest);
    }
    Ok(0)
}
