//! What attackers do that a shell cannot: this program, copied into the lab and run with a user's rights. Which part it
//! plays is in [`ROLE`]; its words are in [`WORDS`], one a line.

use std::fs;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::driver::part;
use super::mps::trace;

/// Environment variable with the part.
pub const ROLE: &str = "GPUOS_HOSTILE_ROLE";
/// Environment variable with the words.
pub const WORDS: &str = "GPUOS_HOSTILE_WORDS";
/// Before each line that the part has to say; the test harness says things of its own.
pub const MARK: &str = "> ";

const HELLO: &str = "{\"ask\":\"hello\",\"protocol\":1,\"client\":\"gpuos\"}\n";

/// Plays the part, if there is one.
pub fn play() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words = std::env::var(WORDS).unwrap_or_default();
    let words: Vec<&str> = words.lines().collect();
    match (&role[..], &words[..]) {
        ("talk", [socket, answers]) => talk(socket, answers),
        ("flood", [socket, seconds]) => flood(socket, seconds),
        ("hold", [socket, count]) => hold(socket, count),
        ("places", [socket, count]) => places(socket, count),
        ("watch", [socket]) => watch(socket),
        ("bind", ports) => bind(ports),
        ("name", [name]) => name_itself(name),
        ("nest", [folder, depth]) => nest(folder, depth),
        ("trace", [pid, program]) => trace::execute(pid, program),
        ("turns", words) => part::turns(words),
        ("callers", [how, target]) => part::callers_of(how, target),
        other => panic!("no such part: {other:?}"),
    }
}

/// A line for whoever has started this.
pub fn say(what: &str) {
    println!("{MARK}{what}");
    let _ = std::io::stdout().flush();
}

/// Until whoever started it closes its standard input, or ends.
fn wait_for_the_end() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn connect(socket: &str) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("gpuosd listens");
    // A busy machine is no attack.
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).expect("a limit");
    stream.set_write_timeout(limit).expect("a limit");
    stream
}

/// Sends what comes on standard input, and says what is answered: so many lines, which may take half a minute on a busy machine. Where
/// any number is wanted, until the other side has been still for 2 s, or for 5 s: a daemon that paces its answers is not waited for.
fn talk(socket: &str, answers: &str) {
    let mut stream = connect(socket);
    let mut text = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut text);
    // A daemon that closes before it has read all has its reasons.
    let _ = stream.write_all(&text);
    let wanted: usize = answers.parse().expect("a count");
    let (still, most) = if wanted == usize::MAX {
        (2, 5)
    } else {
        (30, 45)
    };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(still)));
    let end = Instant::now() + Duration::from_secs(most);
    let mut heard = Vec::new();
    let mut bytes = [0; 4096];
    while heard.iter().filter(|byte| **byte == b'\n').count() < wanted && Instant::now() < end {
        let Ok(count @ 1..) = stream.read(&mut bytes) else {
            break;
        };
        heard.extend(&bytes[..count]);
    }
    String::from_utf8_lossy(&heard).lines().for_each(say);
}

/// Asks for the status as fast as it can, over eight connections, and says how many answers came.
fn flood(socket: &str, seconds: &str) {
    let end = Instant::now() + Duration::from_secs(seconds.parse().expect("seconds"));
    let one = || {
        let mut count = 0u64;
        let mut bytes = vec![0; 1 << 20];
        while Instant::now() < end {
            let Ok(mut stream) = UnixStream::connect(socket) else {
                break;
            };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
            let _ = stream.write_all(HELLO.as_bytes());
            let lines = "{\"ask\":\"status\"}\n".repeat(50);
            while Instant::now() < end && stream.write_all(lines.as_bytes()).is_ok() {
                let Ok(read @ 1..) = stream.read(&mut bytes) else {
                    break;
                };
                count += bytes[..read].iter().filter(|byte| **byte == b'\n').count() as u64;
            }
        }
        count
    };
    let answers: u64 = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        all.into_iter().map(|one| one.join().unwrap_or(0)).sum()
    });
    say(&format!("{answers}"));
}

/// Opens as many watching connections as it is let, and keeps them.
fn hold(socket: &str, count: &str) {
    let mut open = Vec::new();
    for _ in 0..count.parse().expect("a count") {
        let Ok(mut stream) = UnixStream::connect(socket) else {
            continue;
        };
        let _ = stream.write_all(HELLO.as_bytes());
        let _ = stream.write_all(b"{\"ask\":\"watch\"}\n");
        open.push(stream);
    }
    say(&format!("holds {}", open.len()));
    wait_for_the_end();
}

/// Opens as many connections as it is answered on, of so many, and keeps them.
fn places(socket: &str, count: &str) {
    let mut open = Vec::new();
    for _ in 0..count.parse().expect("a count") {
        let mut stream = connect(socket);
        let _ = stream.write_all(HELLO.as_bytes());
        let mut bytes = [0; 1024];
        let read = stream.read(&mut bytes).unwrap_or(0);
        if String::from_utf8_lossy(&bytes[..read]).contains("\"answer\":\"hello\"") {
            open.push(stream);
        }
    }
    say(&open.len().to_string());
    wait_for_the_end();
}

/// Says all that it is told of what happens.
fn watch(socket: &str) {
    let mut stream = connect(socket);
    let _ = stream.write_all(HELLO.as_bytes());
    let _ = stream.write_all(b"{\"ask\":\"watch\"}\n");
    let _ = stream.set_read_timeout(None);
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        let _ = std::io::stdout().write_all(&bytes[..count]);
        let _ = std::io::stdout().flush();
    }
}

/// Holds UDP ports that others want.
fn bind(ports: &[&str]) {
    let all = ports.iter().flat_map(|port| {
        ["127.0.0.1", "0.0.0.0"].map(|address| UdpSocket::bind(format!("{address}:{port}")))
    });
    let held: Vec<UdpSocket> = all.flatten().collect();
    say(&format!("holds {}", held.len()));
    wait_for_the_end();
}

/// Calls itself so, and goes on.
fn name_itself(name: &str) {
    let name = name.replace("\\n", "\n").replace("\\t", "\t");
    fs::write("/proc/self/comm", name).expect("its own name");
    say("named");
    wait_for_the_end();
}

/// Makes folders in folders.
fn nest(folder: &str, depth: &str) {
    std::env::set_current_dir(folder).expect("a folder of its own");
    for _ in 0..depth.parse().expect("a depth") {
        fs::create_dir("d").expect("a folder");
        std::env::set_current_dir("d").expect("the folder");
    }
    say("nested");
}
