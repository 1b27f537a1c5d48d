//! A thread that sees processes end and stop, and ends those that it is told to. What a process has of a GPU is free when the kernel has
//! closed its files: that is so when it is gone or waits for its parent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_host::steps::job_processes::Processes;
use gpuos_memory::lease::ClientId;

use super::Notice;
use super::programs::process;
use crate::sink::Sink;

/// Between two looks, while there is somebody to look after.
const LOOK: Duration = Duration::from_millis(100);
/// The same of those that are followed while they have a connection: that they are dead is known by that.
const FOLLOW: Duration = Duration::from_millis(500);
/// So long a program has to tell its user why it is killed.
const TELL: Duration = Duration::from_millis(200);
/// Without that.
const REST: Duration = Duration::from_secs(3600);

/// What the thread is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Tell when this process is dead.
    Watch(ClientId),
    /// Tell when this process is stopped and when it goes on, until it is dead.
    Follow(ClientId),
    /// Kill it, and tell when it is dead.
    Kill(ClientId),
}

/// Starts the thread.
///
/// # Errors
/// The thread cannot be made.
pub fn start(processes: Box<dyn Processes>, to: Sink<Notice>) -> std::io::Result<Sender<Order>> {
    let (orders, from) = channel();
    let run = move || watch(&*processes, &from, &to);
    thread::Builder::new().name("programs".into()).spawn(run)?;
    Ok(orders)
}

fn watch(processes: &dyn Processes, from: &Receiver<Order>, to: &Sink<Notice>) {
    let mut watched: BTreeSet<ClientId> = BTreeSet::new();
    let mut doomed: BTreeMap<ClientId, Instant> = BTreeMap::new();
    // Whether they were stopped when they were looked at last.
    let mut followed: BTreeMap<ClientId, bool> = BTreeMap::new();
    let mut due = Instant::now();
    let mut follow = due;
    loop {
        let wait = match (watched.is_empty(), followed.is_empty()) {
            (true, true) => REST,
            (true, false) => follow.saturating_duration_since(Instant::now()),
            (false, _) => due.saturating_duration_since(Instant::now()),
        };
        match from.recv_timeout(wait) {
            Ok(Order::Watch(client)) => drop(watched.insert(client)),
            Ok(Order::Follow(client)) => drop(followed.entry(client).or_insert(false)),
            Ok(Order::Kill(client)) => {
                doomed
                    .entry(client)
                    .or_insert_with(|| Instant::now() + TELL);
                watched.insert(client);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if Instant::now() >= follow {
            follow = Instant::now() + FOLLOW;
            if !tell_stopped(processes, &mut followed, to) {
                return;
            }
        }
        if Instant::now() < due {
            continue;
        }
        due = Instant::now() + LOOK;
        doomed.retain(|client, at| {
            let (pid, started) = process(*client);
            let now = Instant::now() >= *at;
            if now && let Err(why) = processes.kill(pid, started) {
                tracing::error!("process {pid} could not be killed: {why}");
            }
            !now
        });
        let dead: Vec<ClientId> = watched
            .iter()
            .filter(|client| is_dead(processes, **client))
            .copied()
            .collect();
        for client in dead {
            watched.remove(&client);
            followed.remove(&client);
            if !to.send(Notice::Gone(client)) {
                return;
            }
        }
    }
}

/// Tells of those that are stopped now and were not, or go on. Who cannot be looked at is as he was, and who is dead is followed no more.
/// Whether there is still somebody to tell.
fn tell_stopped(
    processes: &dyn Processes,
    followed: &mut BTreeMap<ClientId, bool>,
    to: &Sink<Notice>,
) -> bool {
    let mut changed = Vec::new();
    followed.retain(|client, was| {
        let (pid, started) = process(*client);
        let Ok(who) = processes.who(pid) else {
            return true;
        };
        let Some(who) = who.filter(|who| who.started == started && !who.ended) else {
            return false;
        };
        if who.stopped != *was {
            *was = who.stopped;
            changed.push(Notice::Stopped(*client, who.stopped));
        }
        true
    });
    changed.into_iter().all(|told| to.send(told))
}

/// Whether a process is dead. One that cannot be looked at counts as alive: what it has is not given to another.
fn is_dead(processes: &dyn Processes, client: ClientId) -> bool {
    let (pid, started) = process(client);
    match processes.who(pid) {
        Ok(Some(who)) => who.started != started || who.ended,
        Ok(None) => true,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::sync_channel;

    use gpuos_host::steps::job_processes::Proc;

    use super::super::programs::client;
    use super::*;

    struct Told(Notice);

    impl From<Notice> for Told {
        fn from(told: Notice) -> Told {
            Told(told)
        }
    }

    #[test]
    fn a_process_that_is_followed_is_told_when_it_is_stopped_and_goes_on() {
        let proc = Proc::at("/proc");
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let who = proc.who(child.id()).unwrap().unwrap();
        let own = client(child.id(), who.started);
        let (to, from) = sync_channel::<Told>(8);
        let orders = start(Box::new(proc), Sink::of(&to)).unwrap();
        let other = client(child.id(), who.started + 1);
        for followed in [own, other] {
            orders.send(Order::Follow(followed)).unwrap();
        }
        let signal = |name: &str| {
            let pid = child.id().to_string();
            let sent = Command::new("kill").args(["-s", name, &pid]).status();
            assert!(sent.unwrap().success());
        };
        for (name, wanted) in [("STOP", true), ("CONT", false), ("STOP", true)] {
            signal(name);
            match from.recv_timeout(Duration::from_secs(60)) {
                Ok(Told(Notice::Stopped(client, is))) => assert_eq!((client, is), (own, wanted)),
                Ok(Told(told)) => panic!("{told:?}"),
                Err(e) => panic!("{e}"),
            }
        }
        // One that is stopped is killed like any other.
        orders.send(Order::Kill(own)).unwrap();
        match from.recv_timeout(Duration::from_secs(60)) {
            Ok(Told(Notice::Gone(client))) => assert_eq!(client, own),
            other => panic!("{}", other.is_ok()),
        }
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_is_killed_is_told_once_it_is_dead() {
        let proc = Proc::at("/proc");
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let who = proc.who(child.id()).unwrap().unwrap();
        let (own, other) = (
            client(child.id(), who.started),
            client(child.id(), who.started + 1),
        );
        let (to, from) = sync_channel::<Told>(8);
        let orders = start(Box::new(proc), Sink::of(&to)).unwrap();
        let next = || match from.recv_timeout(Duration::from_secs(60)) {
            Ok(Told(Notice::Gone(client))) => client,
            Ok(Told(told)) => panic!("{told:?}"),
            Err(e) => panic!("{e}"),
        };
        // Another process that had its number is dead, and this one is not.
        orders.send(Order::Watch(own)).unwrap();
        orders.send(Order::Kill(other)).unwrap();
        assert_eq!(next(), other);
        assert!(child.try_wait().unwrap().is_none());
        orders.send(Order::Kill(own)).unwrap();
        // It waits for its parent, and is dead.
        assert_eq!(next(), own);
        assert!(!child.wait().unwrap().success());
    }
}
