//! Links over real sockets of the loopback interface.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_link::bucket::Bucket;
use gpuos_link::session::{Fault, Handshake, KeyNames, Kind, Session, Settings};
use gpuos_link::tcp::{Error, Link, Listener, Options, Pace, Receiver, Unsent, connect};

use crate::support::{Fake, ROOT, place};

/// Longer than any test takes that goes well.
pub const LONG: Duration = Duration::from_secs(60);

/// Limits that end no test which goes well, on whatever machine.
pub fn options() -> Options {
    Options {
        handshake: LONG,
        silence: LONG,
        ..Options::default()
    }
}

/// Node 1 listens on a port that the kernel gives.
pub fn listen(options: &Options) -> Listener {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let root = Arc::new(ROOT);
    Listener::start(socket, Arc::new(place(1)), root, options.clone()).unwrap()
}

/// A link from node 0 to node 1, both ends.
pub fn link(listener: &Listener, options: &Options) -> (Link, Link) {
    let one = connect(listener.address(), place(0), NodeIndex(1), &ROOT, options);
    (one.unwrap(), listener.accept(LONG).unwrap())
}

fn body(number: usize, length: usize) -> Vec<u8> {
    let first = blake3::hash(&number.to_le_bytes());
    let mut bytes = vec![0; length];
    for (at, chunk) in bytes.chunks_mut(32).enumerate() {
        chunk.copy_from_slice(&first.as_bytes()[..chunk.len()]);
        chunk[0] ^= at as u8;
    }
    bytes
}

/// The digest of all bodies until the other side closes.
fn drain(receiver: &mut Receiver) -> (usize, blake3::Hash) {
    let (mut count, mut hasher) = (0, blake3::Hasher::new());
    while let Some(body) = receiver.recv().unwrap() {
        count += 1;
        hasher.update(&body);
    }
    (count, hasher.finalize())
}

#[test]
fn a_hundred_megabytes_go_both_ways_while_one_is_slow() {
    const FRAMES: usize = 50;
    const MIB: usize = 1 << 20;
    let options = Options {
        queue_bytes: 4 * MIB,
        ..options()
    };
    let listener = listen(&options);
    let (mut fast, mut slow) = link(&listener, &options);
    assert_eq!(fast.peer.node, NodeIndex(1));
    assert_eq!(
        (slow.peer.node, slow.peer.job.clone()),
        (NodeIndex(0), 7.into())
    );
    let mut expected = blake3::Hasher::new();
    for number in 0..FRAMES {
        expected.update(&body(number, MIB));
    }
    let expected = (FRAMES, expected.finalize());
    // The slow one does not begin to receive before the other was told that it is too fast.
    let (full, is_full) = mpsc::channel();
    thread::scope(|scope| {
        let sender = fast.sender;
        scope.spawn(move || {
            for number in 0..FRAMES {
                match sender.try_send(body(number, MIB)) {
                    Ok(()) => {}
                    Err(Unsent::Full(body)) => {
                        let _ = full.send(sender.queued());
                        sender.send(body, LONG).unwrap();
                    }
                    Err(error) => panic!("{error:?}"),
                }
                let (bodies, bytes) = sender.queued();
                assert!(bodies <= 4 && bytes <= 4 * MIB, "{bodies} {bytes}");
            }
            sender.close(LONG).unwrap();
        });
        let receiver = &mut fast.receiver;
        let back = scope.spawn(move || drain(receiver));
        let sender = slow.sender;
        scope.spawn(move || {
            for number in 0..FRAMES {
                sender.send(body(number, MIB), LONG).unwrap();
            }
            sender.close(LONG).unwrap();
        });
        let (bodies, bytes) = is_full.recv_timeout(LONG).unwrap();
        assert!(bodies <= 4 && bytes <= 4 * MIB);
        assert_eq!(drain(&mut slow.receiver), expected);
        assert_eq!(back.join().unwrap(), expected);
    });
    assert_eq!(listener.failures().count, 0);
}

#[test]
fn what_comes_right_behind_the_handshake_is_not_lost() {
    let options = options();
    let listener = listen(&options);
    for _ in 0..20 {
        let address = listener.address();
        let caller = thread::spawn({
            let options = options.clone();
            move || connect(address, place(0), NodeIndex(1), &ROOT, &options).unwrap()
        });
        let called = listener.accept(LONG).unwrap();
        called.sender.try_send(b"first".to_vec()).unwrap();
        called.sender.try_send(Vec::new()).unwrap();
        called.sender.close(LONG).unwrap();
        let mut receiver = caller.join().unwrap().receiver;
        assert_eq!(receiver.recv(), Ok(Some(b"first".to_vec())));
        assert_eq!(receiver.recv(), Ok(Some(Vec::new())));
        assert_eq!([receiver.recv(), receiver.recv()], [Ok(None), Ok(None)]);
    }
}

#[test]
fn one_direction_closes_and_the_other_goes_on() {
    let options = options();
    let listener = listen(&options);
    let (mut one, mut two) = link(&listener, &options);
    one.sender.close(LONG).unwrap();
    assert_eq!(two.receiver.recv(), Ok(None));
    two.sender.try_send(b"still".to_vec()).unwrap();
    assert_eq!(one.receiver.recv(), Ok(Some(b"still".to_vec())));
    two.sender.close(LONG).unwrap();
    assert_eq!(one.receiver.recv(), Ok(None));
}

/// A session on a bare socket, of node 0 with whoever listens.
fn by_hand(listener: &Listener) -> (TcpStream, Session) {
    let mut stream = TcpStream::connect(listener.address()).unwrap();
    let settings = Settings::default();
    let started = Handshake::initiate(place(0), NodeIndex(1), [9; 32], settings, &ROOT);
    let (mut handshake, hello) = started.unwrap();
    stream.write_all(&hello).unwrap();
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte).unwrap();
        let taken = handshake.feed(&byte, &ROOT).unwrap();
        stream.write_all(&taken.send).unwrap();
        if let Some(session) = taken.session {
            return (stream, session);
        }
    }
}

#[test]
fn a_peer_that_ends_in_the_middle_is_told_from_one_that_closes() {
    let listener = listen(&options());
    let body = vec![7; 1000];
    for keep in [0, 3, 500] {
        let (mut stream, mut session) = by_hand(&listener);
        let mut called = listener.accept(LONG).unwrap();
        let whole = session.sealer.seal(Kind::Data, &body).unwrap().with(&body);
        let half = session.sealer.seal(Kind::Data, &body).unwrap().with(&body);
        stream.write_all(&whole).unwrap();
        stream.write_all(&half[..keep]).unwrap();
        drop(stream);
        assert_eq!(called.receiver.recv(), Ok(Some(body.clone())));
        assert_eq!(called.receiver.recv(), Err(Error::Cut));
        assert_eq!(called.receiver.recv(), Err(Error::Cut));
        // The other half is told, too.
        let sent = called.sender.try_send(Vec::new());
        assert_eq!(sent, Err(Unsent::Ended(Error::Cut)));
    }
}

#[test]
fn a_forged_frame_ends_the_link() {
    let listener = listen(&options());
    let (mut stream, mut session) = by_hand(&listener);
    let mut called = listener.accept(LONG).unwrap();
    let mut bytes = session
        .sealer
        .seal(Kind::Data, b"paid")
        .unwrap()
        .with(b"paid");
    bytes[7] ^= 1;
    stream.write_all(&bytes).unwrap();
    let fault = Err(Error::Fault(Fault::Mac));
    assert_eq!(called.receiver.recv(), fault);
    // The socket is shut, not only given up.
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(called.sender.close(LONG).is_err());
}

#[test]
fn a_dropped_half_ends_the_link_on_both_sides() {
    let options = options();
    let listener = listen(&options);
    let (one, mut two) = link(&listener, &options);
    drop(one.receiver);
    let ended = Err(Unsent::Ended(Error::Dropped));
    assert_eq!(one.sender.try_send(Vec::new()), ended);
    assert_eq!(two.receiver.recv(), Err(Error::Cut));
    let (mut one, two) = link(&listener, &options);
    // Whoever waits to receive is woken by it.
    let waits = thread::spawn(move || one.receiver.recv());
    drop(two);
    assert_eq!(waits.join().unwrap(), Err(Error::Cut));
}

#[test]
fn silence_is_bounded_and_quiet_links_live() {
    let short = Options {
        silence: Duration::from_millis(150),
        ..options()
    };
    let listener = listen(&short);
    // Nobody speaks behind the handshake.
    let (stream, _session) = by_hand(&listener);
    let mut called = listener.accept(LONG).unwrap();
    assert_eq!(called.receiver.recv(), Err(Error::Silent(short.silence)));
    drop(stream);
    // A quiet one says that it is there, so often that the other end, with more patience, hears it several times.
    let (mut stream, mut session) = by_hand(&listener);
    let called = listener.accept(LONG).unwrap();
    let (mut alive, mut buffer) = (0, [0; 37]);
    while alive < 3 {
        stream.read_exact(&mut buffer).unwrap();
        let (used, frame) = session.opener.feed(&buffer).unwrap();
        assert_eq!((used, frame.unwrap().kind), (37, Kind::Alive));
        alive += 1;
    }
    drop(called);
}

#[test]
fn a_peer_that_takes_nothing_is_given_up() {
    let short = Options {
        silence: Duration::from_millis(150),
        queue_bytes: 1 << 20,
        ..options()
    };
    let listener = listen(&short);
    let (_stream, _session) = by_hand(&listener);
    let called = listener.accept(LONG).unwrap();
    let stuck = loop {
        if let Err(Unsent::Ended(error)) = called.sender.send(vec![0; 1 << 20], LONG) {
            break error;
        }
    };
    assert_eq!(stuck, Error::Stuck(short.silence));
    // With patience for silence, and none for the close.
    let listener = listen(&options());
    let (_stream, _session) = by_hand(&listener);
    let called = listener.accept(LONG).unwrap();
    while called.sender.try_send(vec![0; 1 << 20]).is_ok() {}
    let patience = Duration::from_millis(20);
    assert_eq!(
        called.sender.close(patience),
        Err(Error::CloseTime(patience))
    );
}

#[test]
fn messages_over_the_limit_are_told_and_the_link_goes_on() {
    let options = Options {
        settings: Settings {
            limit: 100,
            ..Settings::default()
        },
        queue: 1,
        queue_bytes: 10,
        ..options()
    };
    let listener = listen(&options);
    let (one, mut two) = link(&listener, &options);
    assert_eq!(one.sender.try_send(vec![0; 101]), Err(Unsent::TooLong(100)));
    // More than the queue has room for: one may always wait.
    one.sender.send(vec![1; 100], Duration::MAX).unwrap();
    assert_eq!(two.receiver.recv(), Ok(Some(vec![1; 100])));
}

#[test]
fn a_pace_is_kept_by_all_links_that_share_it() {
    // 300 KB at 1 MB/s, of which 64 KB go at once: whoever is slower for other reasons passes, too.
    let bucket = Bucket::new(1_000_000, 64_000);
    let paced = Options {
        pace: Some(Arc::new(Pace::new(bucket))),
        ..options()
    };
    let listener = listen(&options());
    let begin = std::time::Instant::now();
    let links: Vec<(Link, Link)> = (0..2).map(|_| link(&listener, &paced)).collect();
    thread::scope(|scope| {
        for (one, two) in links {
            scope.spawn(move || {
                let (one, mut two) = (one, two);
                one.sender.try_send(body(1, 150_000)).unwrap();
                one.sender.close(LONG).unwrap();
                assert_eq!(drain(&mut two.receiver).0, 1);
            });
        }
    });
    assert!(begin.elapsed() >= Duration::from_millis(235));
}

#[test]
fn the_wrong_ones_are_turned_away_and_logged() {
    let listener = listen(&options());
    let try_as = |place, peer, credentials: &Fake| {
        let link = connect(
            listener.address(),
            place,
            NodeIndex(peer),
            credentials,
            &options(),
        );
        link.err().map(|error| error.to_string())
    };
    let other_job = gpuos_link::session::Place {
        job: 8.into(),
        ..place(0)
    };
    let user = Fake { uid: 1000, ..ROOT };
    for (caller, word) in [
        ((other_job, 1, &ROOT), "job 8"),
        ((place(0), 2, &ROOT), "node 0 to node 2"),
        ((place(0), 1, &user), "user 1000"),
    ] {
        let (place, peer, credentials) = caller;
        assert!(
            try_as(place, peer, credentials)
                .unwrap()
                .contains("during the handshake")
        );
        let mut failures = listener.failures();
        while failures.count == 0 {
            thread::yield_now();
            failures = listener.failures();
        }
        let (_, error) = &failures.last[0];
        assert!(error.to_string().contains(word), "{error}");
    }
    // Nobody listens any more, but for a child that another test starts just now, until it runs its program.
    let address = listener.address();
    drop(listener);
    let begun = std::time::Instant::now();
    loop {
        let link = connect(address, place(0), NodeIndex(1), &ROOT, &options());
        let error = link.err().expect("nobody is there");
        if matches!(error, Error::Unreached(_)) {
            break;
        }
        assert!(begun.elapsed() < LONG, "{error}");
    }
}

#[test]
fn nodes_with_different_keys_are_both_told_why_they_have_no_link() {
    let with = |makes: u8, knows: &[[u8; 8]]| Options {
        settings: Settings {
            keys: KeyNames::new(&[[makes; 8]], knows),
            ..Settings::default()
        },
        ..options()
    };
    let (old, both) = (with(1, &[[1; 8]]), with(1, &[[1; 8], [2; 8]]));
    let listener = listen(&both);
    drop(link(&listener, &old));
    let other = with(3, &[[3; 8]]);
    let refused = connect(listener.address(), place(0), NodeIndex(1), &ROOT, &other);
    let Err(Error::Fault(Fault::Keys(keys))) = refused else {
        panic!("they have different keys");
    };
    let why = keys.to_string();
    assert!(
        why.contains(
            "that one makes them with 0101010101010101, and this one with 0303030303030303"
        ),
        "{why}"
    );
    let told = loop {
        if let Some((_, error)) = listener.failures().last.pop_back() {
            break error;
        }
        thread::sleep(Duration::from_millis(5));
    };
    assert!(matches!(told, Error::Fault(Fault::Keys(_))), "{told:?}");
}
