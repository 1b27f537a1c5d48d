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
    // Another test may start a child just now, which has the socket until it runs its program, or be given the port.
    let begun = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it closes with the server"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// Half of a request, and nothing more.
fn slow(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost");
    stream
}

/// Whether the server has ended a connection by now: it has not waited for the time of a head, which the test does not
/// either.
fn ended(stream: &mut TcpStream) -> bool {
    stream
        .set_read_timeout(Some(Duration::from_millis(1)))
        .unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(length) => length < 64,
        Err(e) => e.kind() == io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn slow_clients_give_way_to_one_who_asks() {
    let (_server, address) = server();
    for _ in 0..3 {
        let mut held: Vec<TcpStream> = (0..50).map(|_| slow(address)).collect();
        let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        // Those who came first went, so that there was room: nobody waited for their time to be over.
        let gone = held
            .iter_mut()
            .take(50 - CONNECTIONS)
            .filter_map(|one| ended(one).then_some(()));
        assert_eq!(gone.count(), 50 - CONNECTIONS);
    }
}

#[test]
fn a_place_is_given_up_by_whoever_has_most_and_says_nothing() {
    let mut places = Places::default();
    let address = |n: u8| IpAddr::from([10, 0, 0, n]);
    let scraper = places.make_slot(address(1));
    places.asked(scraper);
    let others: Vec<u64> = (1..CONNECTIONS)
        .map(|_| places.make_slot(address(2)))
        .collect();
    places.asked(others[0]);
    for round in 0..1000 {
        let new = places.make_slot(address(2));
        assert!(places.taken.len() <= CONNECTIONS);
        assert!(places.taken.contains_key(&scraper), "after {round} more");
        assert!(places.taken.contains_key(&others[0]) && places.taken.contains_key(&new));
    }
    // Slow readers, too: those of the address that has the most.
    for number in places.taken.keys().copied().collect::<Vec<_>>() {
        places.asked(number);
    }
    let second = places.make_slot(address(3));
    assert!(!places.taken.contains_key(&others[0]) && places.taken.contains_key(&second));
}

#[test]
fn a_flood_of_requests_makes_the_text_once() {
    let (server, address) = server();
    let request = "GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n";
    let first = ask(address, request);
    let text = server.shared.text.lock().unwrap().clone().unwrap();
    for _ in 0..20 {
        assert_eq!(ask(address, request).len(), first.len());
    }
    let again = server.shared.text.lock().unwrap().clone().unwrap();
    assert_eq!(text.as_ptr(), again.as_ptr());
    server.show(Arc::new(Snapshot {
        node: "n2".into(),
        ..Snapshot::default()
    }));
    assert!(ask(address, request).contains("n2"));
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
