//! Real sockets, in private directories.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpuos_core::wire::{
    Code, Happening, MAX_REPLY, MAX_REQUEST, PROTOCOL, Peer, Reply, Request, decode, encode,
};

use super::{BindError, Client, ClientError, Limits, RequestHandler, Server, bind};

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Echo {
    watchers: Mutex<Vec<SyncSender<Happening>>>,
}

impl Echo {
    fn happen(&self, message: &str) {
        self.tell("warn", message);
    }

    fn tell(&self, what: &str, message: &str) {
        let event = Happening {
            at_ms: 1,
            what: what.into(),
            gpu: None,
            job: None,
            message: message.into(),
        };
        let mut watchers = self.watchers.lock().unwrap();
        watchers.retain(|watcher| watcher.try_send(event.clone()).is_ok());
    }
}

impl RequestHandler for Echo {
    fn who(&self) -> (String, String) {
        ("0.0.0".into(), "n1".into())
    }

    fn ask(&self, peer: Peer, request: Request) -> Reply {
        Reply::Done {
            message: format!("{} {request:?}", peer.uid),
        }
    }

    fn watch(&self, _: Peer) -> Receiver<Happening> {
        let (to, from) = sync_channel(4);
        self.watchers.lock().unwrap().push(to);
        from
    }
}

struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
    handler: Arc<Echo>,
}

fn place(limits: Limits) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run").join(super::NAME);
    let handler = Arc::new(Echo::default());
    let listener = bind(&path).unwrap();
    Server::start(listener, handler.clone(), limits).unwrap();
    Place {
        _folder: folder,
        path,
        handler,
    }
}

fn raw(place: &Place) -> UnixStream {
    let stream = UnixStream::connect(&place.path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

const HELLO: &[u8] = b"{\"ask\":\"hello\",\"protocol\":1,\"client\":\"test\"}\n";

fn all(mut stream: UnixStream) -> String {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

#[test]
fn a_client_is_answered_and_the_daemon_knows_who_it_is() {
    let place = place(Limits::default());
    let mut client = Client::connect(&place.path, PATIENCE).unwrap();
    assert_eq!(client.daemon, ("0.0.0".into(), "n1".into()));
    let uid = rustix::process::getuid().as_raw();
    match client.ask(&Request::Reload).unwrap() {
        Reply::Done { message } => assert_eq!(message, format!("{uid} Reload")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_socket_that_a_dead_daemon_left_is_replaced_and_a_living_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(super::NAME);
    drop(bind(&path).unwrap());
    // A child that another test starts just now has it as well, until it runs its program.
    let deadline = std::time::Instant::now() + PATIENCE;
    let alive = loop {
        match bind(&path) {
            Err(BindError::InUse) if std::time::Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            bound => break bound.unwrap(),
        }
    };
    assert!(matches!(bind(&path), Err(BindError::InUse)));
    drop(alive);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(bind(&path), Err(BindError::NotASocket)));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn who_does_not_say_hello_or_says_too_much_is_told_and_dropped() {
    let place = place(Limits::default());
    for (sent, code) in [
        (&b"{\"ask\":\"status\"}\n"[..], Code::Protocol),
        (
            b"{\"ask\":\"hello\",\"protocol\":9,\"client\":\"x\"}\n",
            Code::Protocol,
        ),
        (&vec![b'x'; MAX_REQUEST + 2], Code::TooLong),
    ] {
        let mut stream = raw(&place);
        stream.write_all(sent).unwrap();
        match decode::<Reply>(all(stream).as_bytes(), 4096).unwrap() {
            Reply::Refused { code: told, .. } => assert_eq!(told, code),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_line_that_is_no_request_is_refused_and_the_next_is_answered() {
    let place = place(Limits::default());
    let mut stream = raw(&place);
    stream.write_all(HELLO).unwrap();
    stream
        .write_all(b"\xff\xfe\n{\"ask\":\"reload\"}\n")
        .unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let text = all(stream);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines[1].contains("malformed") && lines[2].contains("Reload"),
        "{text}"
    );
}

#[test]
fn who_writes_and_goes_is_heard() {
    let place = place(Limits::default());
    for _ in 0..6 {
        let mut stream = raw(&place);
        let lines = [HELLO, b"{\"ask\":\"watch\"}\n"].concat();
        stream.write_all(&lines).unwrap();
    }
    let deadline = std::time::Instant::now() + PATIENCE;
    while place.handler.watchers.lock().unwrap().len() < 6 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn too_many_connections_are_refused_and_room_comes_back() {
    let limits = Limits {
        users: 2,
        one_user: 2,
        root: 2,
        ..Limits::default()
    };
    let place = place(limits);
    let first = Client::connect(&place.path, PATIENCE).unwrap();
    let _second = Client::connect(&place.path, PATIENCE).unwrap();
    match Client::connect(&place.path, PATIENCE) {
        Err(ClientError::Refused(why)) => assert!(why.contains("too many"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop(first);
    // The thread of the connection sees its end on its own time.
    let deadline = std::time::Instant::now() + PATIENCE;
    while Client::connect(&place.path, PATIENCE).is_err() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_refusal_is_read_though_the_connection_is_closed_already() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let daemon = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let said = stream.read(&mut [0; 1024]).unwrap();
        assert!(said > 0);
        let hello = Reply::Hello {
            protocol: PROTOCOL,
            release: "0.0.0".into(),
            node: "n1".into(),
        };
        let refused = Reply::Refused {
            code: Code::Busy,
            message: "too many".into(),
        };
        for reply in [hello, refused] {
            stream
                .write_all(&encode(&reply, MAX_REPLY).unwrap())
                .unwrap();
        }
    });
    let mut client = Client::connect(&path, PATIENCE).unwrap();
    daemon.join().unwrap();
    match client.status() {
        Err(ClientError::Refused(why)) => assert_eq!(why, "too many"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_watcher_hears_and_a_slow_one_is_told_so() {
    let place = place(Limits::default());
    let mut client = Client::connect(&place.path, PATIENCE).unwrap();
    client.watch().unwrap();
    let watched = || !place.handler.watchers.lock().unwrap().is_empty();
    while !watched() {
        std::thread::sleep(Duration::from_millis(5));
    }
    place.handler.happen("one");
    match client.next_reply().unwrap() {
        Some(Reply::Happened { event }) => assert_eq!(event.message, "one"),
        other => panic!("{other:?}"),
    }
    // More than socket and queue hold, and nobody reads: telling it never blocks.
    let long = "x".repeat(100_000);
    while watched() {
        place.handler.happen(&long);
    }
}

/// What it has left unread of its own hides from a look that it has gone.
#[test]
fn a_watcher_that_writes_on_and_goes_gives_thread_and_place_back() {
    let place = place(Limits::default());
    let mut stream = raw(&place);
    let lines = [HELLO, b"{\"ask\":\"watch\"}\n"].concat();
    stream.write_all(&lines).unwrap();
    let watched = || !place.handler.watchers.lock().unwrap().is_empty();
    while !watched() {
        std::thread::sleep(Duration::from_millis(5));
    }
    stream.write_all(&[b'x'; 16 << 10]).unwrap();
    drop(stream);
    let begun = std::time::Instant::now();
    while watched() {
        assert!(begun.elapsed() < PATIENCE, "it keeps them");
        // Nothing is sent for these, so that no failure of sending tells of it.
        place.handler.tell("", "");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Who is there still is told that nothing more is heard of him.
    let mut stream = raw(&place);
    stream.write_all(&lines).unwrap();
    stream.write_all(b"{\"ask\":\"status\"}\n").unwrap();
    let said = all(stream);
    assert!(said.contains("takes no more requests"), "{said}");
}
