//! Programs that are kept to the GPUs of their jobs: what the hook tells of the process that becomes one, and what becomes of the start.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Hook, command, has_python, library};

const LAUNCH: &str = "pbs.event().type=execjob_launch\npbs.get_local_nodename()=n1\npbs.event().job.id=1.head\n\
                      pbs.event().job.exec_vnode=(n1:ngpus=1)\npbs.event().job.euser=root\npbs.event().env=\"\"\"A=1\"\"\"";

/// A hook of a site that has it so, with GPUs on n1, and the socket where it looks for gpuosd.
fn hook(confine: &str, library: &Path) -> (Hook, std::path::PathBuf) {
    let hook = Hook::new(&json!({}));
    let socket = hook.path("gpuosd.sock");
    let known = json!({
        "command": command(), "library": library, "hosts": { "n1": { "gpus": [{}, {}] } }, "gpuosd": socket, "confine": confine,
    });
    std::fs::write(hook.path("hook.json"), known.to_string()).expect("a file");
    (hook, socket)
}

/// A gpuosd that confines whoever it is asked about; what it was asked comes out of the channel.
fn gpuosd(socket: &Path) -> Receiver<Value> {
    let listener = UnixListener::bind(format!("{}.root", socket.display())).expect("a socket");
    let (to, from) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let lines = BufReader::new(stream.try_clone().expect("a stream")).lines();
            for line in lines.map_while(Result::ok) {
                let told: Value = serde_json::from_str(&line).expect("JSON");
                let answer = match told["ask"].as_str() {
                    Some("hello") => {
                        json!({ "answer": "hello", "protocol": 1, "release": "1", "node": "n1" })
                    }
                    Some("mom") => {
                        json!({ "answer": "mom", "orders": { "chosen": { "1.head": { "gpus": [1] } } } })
                    }
                    Some("confine") => {
                        let _ = to.send(told);
                        json!({ "answer": "done", "message": "it is" })
                    }
                    _ => continue,
                };
                // Who only tells something does not wait.
                let _ = (&stream).write_all(format!("{answer}\n").as_bytes());
            }
        }
    });
    from
}

#[test]
fn gpuosd_is_asked_about_the_process_of_which_the_hook_is_a_child() {
    if !has_python() {
        return;
    }
    let (hook, socket) = hook("require", &library());
    let asked = gpuosd(&socket);
    // The library gives up after 2 s: on a busy machine it may not have had its answer by then.
    let said = (0..20).map(|_| hook.one(LAUNCH));
    let mut accepted = said.filter(|said| said.contains("accept=True"));
    let said = accepted.next().expect("it starts at last");
    assert!(said.contains("CUDA_VISIBLE_DEVICES]=1"), "{said}");
    let asked = asked
        .recv_timeout(Duration::from_secs(60))
        .expect("it was asked");
    let stat = std::fs::read_to_string("/proc/self/stat").expect("stat");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let started = fields.split_ascii_whitespace().nth(19);
    let started: u64 = started.and_then(|field| field.parse().ok()).expect("ticks");
    let wanted =
        json!({ "ask": "confine", "job": "1.head", "pid": std::process::id(), "started": started });
    assert_eq!(asked, wanted);
}

#[test]
fn without_gpuosd_a_program_starts_unless_the_site_requires_it_and_the_job_is_not_lost() {
    if !has_python() {
        return;
    }
    let elsewhere = LAUNCH.replace("n1", "n7");
    for (word, library, why) in [
        ("off", library(), None),
        (
            "try",
            library(),
            Some("does not keep a program of job 1.head to its GPUs"),
        ),
        (
            "require",
            library(),
            Some("cannot keep this program to the GPUs of its job"),
        ),
        ("require", "/nowhere.so".into(), Some("cannot be loaded")),
    ] {
        let (hook, _) = hook(word, &library);
        let said = hook.run(&[LAUNCH, &elsewhere]);
        let refused = word == "require";
        assert_eq!(said[0].contains("reject=True"), refused, "{}", said[0]);
        // PBS deletes a job whose start is refused, unless it is to run again.
        assert_eq!(said[0].contains("_rerun=True"), refused, "{}", said[0]);
        match why {
            Some(why) => assert!(said[0].contains(why), "{word}: {}", said[0]),
            None => assert!(!said[0].contains("log="), "{}", said[0]),
        }
        // A host of which gpuos knows no GPUs.
        assert!(said[1].contains("accept=True"), "{word}: {}", said[1]);
    }
}
