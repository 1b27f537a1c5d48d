//! The endpoint as clients meet it, on the loopback.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::*;

fn server() -> (Server, SocketAddr) {
    let server = Server::start("127.0.0.1:0".parse().unwrap()).unwrap();
    let begun = Instant::now();
    let address = loop {
        if let Some(address) = server.address() {
            break address;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{:?}",
            server.trouble()
        );
        thread::sleep(Duration::from_millis(5));
    };
    let snapshot = Snapshot {
        node: "n1".into(),
        waiting: 3,
        ..Snapshot::default()
    };
    server.show(Arc::new(snapshot));
    (server, address)
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn metrics_are_told_and_nothing_else() {
    let (server, address) = server();
    let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains(&format!("content-type: {}", text::CONTENT_TYPE)),
        "{answer}"
    );
    assert!(
        answer.contains("gpuosd_actions_waiting{node=\"n1\"} 3.0\n"),
        "{answer}"
    );
    assert!(
        answer.contains("process_resident_memory_bytes "),
        "{answer}"
    );
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: n1\r\n\r\n", "200"),
        ("GET /etc/passwd HTTP/1.1\r\nHost: n1\r\n\r\n", "404"),
        (
            "POST /metrics HTTP/1.1\r\nHost: n1\r\ncontent-length: 0\r\n\r\n",
            "405",
        ),
        ("\0\u{1}\u{2} nonsense\r\n\r\n", "400"),
    ] {
        let answer = ask(address, request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request}: {answer}"
        );
    }
    let long = format!(
        "GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n",
        "n".repeat(64 << 10)
    );
    assert!(!ask(address, &long).contains("200 OK"));
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1000));
    assert!(!ask(address, &many).contains("200 OK"));
    drop(server);
    assert!(
        TcpStream::connect(address).is_err(),
        "it closes with the server"
    );
}

#[test]
fn idle_clients_hold_up_others_for_a_while_only() {
    let (_server, address) = server();
    let held: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    // All places are taken; they are given back after the time for a head.
    let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    drop(held);
}

#[test]
fn a_port_that_is_taken_is_a_trouble_and_not_the_end() {
    let (_first, address) = server();
    let second = Server::start(address).unwrap();
    let begun = Instant::now();
    while second.trouble().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(5));
    }
    let why = second.trouble().unwrap();
    assert!(
        why.contains("[metrics] listen") && second.address().is_none(),
        "{why}"
    );
}
