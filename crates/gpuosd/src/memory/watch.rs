//! A thread that sees processes end, and ends those that it is told to. What a process has of a GPU is free when the kernel has
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
/// So long a program has to tell its user why it is killed.
const TELL: Duration = Duration::from_millis(200);
/// Without that.
const REST: Duration = Duration::from_secs(3600);

/// What the thread is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Tell when this process is dead.
    Watch(ClientId),
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
    let mut due = Instant::now();
    loop {
        let wait = match watched.is_empty() {
            true => REST,
            false => due.saturating_duration_since(Instant::now()),
        };
        match from.recv_timeout(wait) {
            Ok(Order::Watch(client)) => drop(watched.insert(client)),
            Ok(Order::Kill(client)) => {
                doomed
                    .entry(client)
                    .or_insert_with(|| Instant::now() + TELL);
                watched.insert(client);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
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
            if !to.send(Notice::Gone(client)) {
                return;
            }
        }
    }
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

    #[test]
    fn a_process_that_is_killed_is_told_once_it_is_dead() {
        struct Told(Notice);
        impl From<Notice> for Told {
            fn from(told: Notice) -> Told {
                Told(told)
            }
        }
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
