//! Strangers who connect and say little or nothing hold nobody up.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_link::session::{Handshake, Settings};
use gpuos_link::tcp::{Error, Options};

use crate::sockets::{LONG, link, listen, options};
use crate::support::{ROOT, place};

#[test]
fn two_hundred_silent_strangers_hold_nobody_up() {
    let options = options();
    let listener = listen(&options);
    let (mut before, its) = link(&listener, &options);
    let mut strangers: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(listener.address()).unwrap())
        .collect();
    for (number, stranger) in strangers.iter_mut().enumerate() {
        // Some say the beginning of something. Those that were put out cannot.
        let said: &[u8] = [&b""[..], &[9], &[200, 0, 0, 0, b'M']][number % 3];
        let _ = stranger.write_all(said);
    }
    let (mut one, mut two) = link(&listener, &options);
    one.sender.try_send(b"new".to_vec()).unwrap();
    assert_eq!(two.receiver.recv(), Ok(Some(b"new".to_vec())));
    two.sender.try_send(b"back".to_vec()).unwrap();
    assert_eq!(one.receiver.recv(), Ok(Some(b"back".to_vec())));
    its.sender.try_send(b"old".to_vec()).unwrap();
    assert_eq!(before.receiver.recv(), Ok(Some(b"old".to_vec())));
    // All come from one address: no more than its share is inside.
    assert!(listener.unfinished() <= options.unfinished_by_source);
    drop(strangers);
}

#[test]
fn each_handshake_has_its_time() {
    let short = Options {
        handshake: Duration::from_millis(100),
        ..options()
    };
    let listener = listen(&short);
    let mut silent = TcpStream::connect(listener.address()).unwrap();
    // Another one says a byte now and then, which buys no time.
    let mut slow = TcpStream::connect(listener.address()).unwrap();
    while slow.write_all(&[1]).is_ok() && listener.unfinished() > 0 {
        thread::sleep(Duration::from_millis(10));
    }
    // The system ends both.
    silent.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0);
    let mut count = 0;
    while count < 2 {
        thread::yield_now();
        let failures = listener.failures();
        count += failures.count;
        for (_, error) in failures.last {
            assert!(!matches!(error, Error::Io { .. }), "{error}");
        }
    }
    // One who calls a node that says nothing waits no longer, either.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = mute.local_addr().unwrap();
    let link = gpuos_link::tcp::connect(address, place(0), NodeIndex(1), &ROOT, &short);
    assert_eq!(link.err(), Some(Error::Handshake(short.handshake)));
}

#[test]
fn a_node_that_has_spoken_is_not_put_out_by_strangers() {
    let options = Options {
        unfinished_by_source: 4,
        ..options()
    };
    let listener = listen(&options);
    let mut stream = TcpStream::connect(listener.address()).unwrap();
    let settings = Settings::default();
    let started = Handshake::initiate(place(0), NodeIndex(1), [9; 32], settings, &ROOT);
    let (mut handshake, hello) = started.unwrap();
    stream.write_all(&hello).unwrap();
    // Whoever has an answer is known.
    let mut byte = [0];
    let mut confirm = Vec::new();
    while confirm.is_empty() {
        stream.read_exact(&mut byte).unwrap();
        confirm = handshake.feed(&byte, &ROOT).unwrap().send;
    }
    let strangers: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(listener.address()).unwrap())
        .collect();
    stream.write_all(&confirm).unwrap();
    assert!(listener.accept(LONG).is_some());
    drop(strangers);
}
