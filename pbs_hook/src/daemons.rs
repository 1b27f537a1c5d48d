//! Daemons on the host of the mom, by their sockets: lines go there, and their answers come back.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use gpuos_pbs::hook::question::Question;
use gpuos_pbs::hook::talk::{Said, Talk};

use crate::budget;

/// The most that one may say, in bytes.
const MOST: usize = 2 << 20;

/// How long a daemon that was there had the talk at least, and how soon one that is away is tried again.
const LASTS: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(250);

/// What each of them says, one after the other, within a time for all of them.
pub(crate) fn ask(question: &Question, within: Duration) -> Vec<Said> {
    let began = Instant::now();
    budget::each(&question.talks, within, || began.elapsed(), one)
}

fn one(talk: Talk) -> Said {
    let (to, from) = sync_channel(1);
    let patience = Duration::from_millis(talk.patience_ms);
    // A thread of its own: a socket whose queue is full keeps whoever connects for as long as it is.
    // Its standard error is the user's job's, too.
    let run = move || {
        let said = super::silently(|| converse(&talk));
        drop(to.send(said.unwrap_or_else(|| Err("the hook failed on it".into()))));
    };
    let thread = thread::Builder::new().name("daemon".into()).spawn(run);
    thread.map_err(|why| format!("no thread can be made: {why}"))?;
    from.recv_timeout(patience)
        .unwrap_or_else(|_| Err(format!("it took longer than {} ms", patience.as_millis())))
}

/// The talk, begun anew for a while where the daemon is away.
fn converse(talk: &Talk) -> Said {
    let absence = Duration::from_millis(talk.absence_ms);
    let mut heard = Instant::now();
    loop {
        let began = Instant::now();
        let said = once(talk);
        let whole = |said: &Vec<u8>| count(said) >= talk.answers;
        // One that says nothing but no, at once, is not there for this.
        if began.elapsed() >= LASTS {
            heard = Instant::now();
        }
        if said.as_ref().is_ok_and(whole) || heard.elapsed() >= absence {
            return said;
        }
        thread::sleep(AGAIN);
    }
}

/// How many lines there are.
fn count(said: &[u8]) -> usize {
    said.iter().filter(|byte| **byte == b'\n').count()
}

fn once(talk: &Talk) -> Said {
    // No socket, or one that a daemon left which has ended.
    let mut stream = UnixStream::connect(&talk.socket).map_err(|_| String::new())?;
    stream
        .write_all(&talk.lines)
        .map_err(|why| why.to_string())?;
    let mut said = Vec::new();
    let mut bytes = [0; 4096];
    while count(&said) < talk.answers {
        match stream.read(&mut bytes).map_err(|why| why.to_string())? {
            0 => break,
            read => said.extend_from_slice(bytes.get(..read).unwrap_or_default()),
        }
        if said.len() > MOST {
            return Err("it says more than it may".into());
        }
    }
    Ok(said)
}
