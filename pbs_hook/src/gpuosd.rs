//! gpuosd on the host of the mom, by its socket for root: lines go there, and its two answers come back.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use gpuos_pbs::hook::mom::Question;

/// How long gpuosd may take, and how long the start of a program waits for it to take a few bytes.
const ANSWERS: Duration = Duration::from_secs(1);
const TAKES: Duration = Duration::from_millis(300);
/// The most that it may say, in bytes.
const MOST: usize = 2 << 20;
/// Answers: to the greeting, and to the question.
const ANSWER_LINES: usize = 2;

/// What gpuosd says. The error is why there is nothing; an empty text: it is not here.
pub(crate) fn ask(question: &Question) -> Result<Vec<u8>, String> {
    let (to, from) = sync_channel(1);
    let (path, lines) = (format!("{}.root", question.socket), question.lines.clone());
    let waits = question.waits;
    // A thread of its own: a socket whose queue is full keeps whoever connects for as long as it is.
    // Its standard error is the user's job's, too.
    let run = move || {
        let said = super::silently(|| talk(&path, &lines, waits));
        drop(to.send(said.unwrap_or_else(|| Err("the hook failed on it".into()))));
    };
    let thread = thread::Builder::new().name("gpuosd".into()).spawn(run);
    thread.map_err(|why| format!("no thread can be made: {why}"))?;
    let patience = if waits { ANSWERS } else { TAKES };
    from.recv_timeout(patience)
        .unwrap_or_else(|_| Err(format!("it took longer than {} ms", patience.as_millis())))
}

fn talk(path: &str, lines: &[u8], waits: bool) -> Result<Vec<u8>, String> {
    // No socket, or one that a gpuosd left which has ended.
    let mut stream = UnixStream::connect(path).map_err(|_| String::new())?;
    stream.write_all(lines).map_err(|why| why.to_string())?;
    let mut said = Vec::new();
    let mut bytes = [0; 4096];
    while waits && said.iter().filter(|byte| **byte == b'\n').count() < ANSWER_LINES {
        match stream.read(&mut bytes).map_err(|why| why.to_string())? {
            0 => break,
            count => said.extend_from_slice(bytes.get(..count).unwrap_or_default()),
        }
        if said.len() > MOST {
            return Err("it says more than it may".into());
        }
    }
    Ok(said)
}
