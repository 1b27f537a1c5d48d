//! What a mom tells gpuosd by the hook, and does by its answer, with a gpuosd that says what the test wants.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{ACCEPTED, Hook, command, has_python, library};

/// As a mom of OpenPBS 23.06 tells it: a job of one GPU, and one without.
const EVENT: &str = "pbs.event().type=exechost_periodic
pbs.get_local_nodename()=n1
pbs.event().vnode_list[\"n1\"].resources_available[ncpus]=0
pbs.event().vnode_list[\"n1[0]\"].resources_available[ngpus]=1
pbs.event().vnode_list[\"n1[1]\"].resources_available[ngpus]=1
pbs.event().job_list[\"1.head\"].exec_vnode=(n1[0]:ncpus=1:ngpus=1)
pbs.event().job_list[\"1.head\"].euser=root
pbs.event().job_list[\"1.head\"].session_id=4711
pbs.event().job_list[\"1.head\"].run_version=3
pbs.event().job_list[\"2.head\"].exec_vnode=(n1:ncpus=1)
pbs.event().job_list[\"2.head\"].euser=nobody-here
pbs.server().vnode(n1).state=0
pbs.server().vnode(n1[0]).state=64
pbs.server().vnode(n1[1]).state=1
pbs.server().vnode(n1[1]).comment=fan
pbs.server().job(1.head).Rerunable=True";

/// A gpuosd: what it was told comes out of the channel; the n-th connection gets the n-th answer, and those beyond the last one.
pub fn gpuosd(socket: &Path, answers: Vec<Value>) -> Receiver<Value> {
    let listener = UnixListener::bind(format!("{}.root", socket.display())).expect("a socket");
    let (to, from) = channel();
    thread::spawn(move || {
        for (turn, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let mut lines = BufReader::new(stream.try_clone().expect("a stream")).lines();
            let hello: Value =
                serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON");
            assert_eq!(hello["ask"], "hello");
            let told = lines.next().expect("a line").expect("text");
            let orders = answers.get(turn).or(answers.last()).expect("an answer");
            let said = [
                json!({ "answer": "hello", "protocol": 1, "release": "1", "node": "n1" }),
                json!({ "answer": "mom", "orders": orders }),
            ];
            let said: String = said.iter().map(|line| format!("{line}\n")).collect();
            // Who only tells something does not wait.
            let _ = (&stream).write_all(said.as_bytes());
            if to.send(serde_json::from_str(&told).expect("JSON")).is_err() {
                return;
            }
        }
    });
    from
}

/// A hook that is told of these hosts, and the socket where it looks for gpuosd.
pub fn hook_of(hosts: &Value, name: &str) -> (Hook, PathBuf) {
    let hook = Hook::new(&json!({}));
    let socket = hook.path(name);
    let known =
        json!({ "command": command(), "library": library(), "hosts": hosts, "gpuosd": socket });
    std::fs::write(hook.path("hook.json"), known.to_string()).expect("a file");
    (hook, socket)
}

fn hook(name: &str) -> (Hook, PathBuf) {
    hook_of(
        &json!({ "n1": { "gpus": [{ "uuid": "GPU-a" }, { "uuid": "GPU-b" }] } }),
        name,
    )
}

/// A process that leads a session, as the script of a job does.
struct Session(std::process::Child);

impl Session {
    fn start() -> Session {
        let mut sleeps = std::process::Command::new("setsid");
        let child = sleeps.args(["sleep", "10000"]).spawn();
        let session = Session(child.expect("setsid of util-linux starts"));
        while !is_leader(session.pid()) {
            thread::sleep(Duration::from_millis(5));
        }
        session
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The user of this test.
    fn user(&self) -> String {
        let said = std::process::Command::new("id").arg("-un").output();
        let said = String::from_utf8(said.expect("id runs").stdout).expect("text");
        said.trim().to_string()
    }

    fn end(&mut self) {
        // One that has ended already is well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a process leads its session, by the sixth field of its `stat`.
fn is_leader(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    fields.split_whitespace().nth(3) == Some(&pid.to_string())
}

#[test]
fn a_mom_tells_its_jobs_and_does_what_gpuosd_says() {
    if !has_python() {
        return;
    }
    let (hook, socket) = hook("gpuosd.sock");
    let orders = json!({ "out": [0, 1], "look": true, "rerun": { "1.head": 0 } });
    let told = gpuosd(&socket, vec![json!({ "look": true }), orders]);
    let said = hook.one(EVENT);
    let wanted = format!(
        "{ACCEPTED}pbs.event().job_list[\"1.head\"]._rerun=True\n\
         pbs.event().vnode_list[\"n1[0]\"].comment=gpuos: GPU 0 is out of service; gpuos health on n1 says why\n\
         pbs.event().vnode_list[\"n1[0]\"].state=offline\n"
    );
    assert_eq!(said, wanted);
    let first = told.recv().expect("told")["report"].clone();
    assert_eq!(first["gpus"], json!(["GPU-a", "GPU-b"]));
    let job = json!({
        "job": "1.head", "user": "root", "uid": 0, "gpus": [0], "run": 3, "hosts": "n1", "script_on": "n1",
    });
    assert_eq!(
        (&first["jobs"], &first["all"]),
        (&json!([job]), &json!(true))
    );
    let second = told.recv().expect("told")["report"]["vnodes"].clone();
    assert_eq!(
        (&second["offline"], &second["own"]),
        (&json!([1]), &json!([]))
    );
}

#[test]
fn a_job_that_pbs_server_knows_to_run_again_is_ended() {
    if !has_python() {
        return;
    }
    let (hook, socket) = hook("gpuosd.sock");
    let told = gpuosd(&socket, vec![json!({ "rerun": { "1.head": 1 } })]);
    let mut script = Session::start();
    let (pid, user) = (script.pid(), script.user());
    let event = format!("{EVENT}\npbs.server().job(1.head).Exit_status=-18")
        .replace("session_id=4711", &format!("session_id={pid}"));
    let own = event.replace("euser=root", &format!("euser={user}"));
    assert_eq!(hook.one(&own), format!("{ACCEPTED}kill={pid}\n"));
    assert!(told.recv().is_ok());
    // A number that is by now another user's process, one inside of a session, and nobody's.
    let other = if user == "root" { "nobody" } else { "root" };
    let stranger = event.replace("euser=root", &format!("euser={other}"));
    assert_eq!(hook.one(&stranger), ACCEPTED);
    let inside = own.replace(&format!("={pid}"), &format!("={}", std::process::id()));
    if !is_leader(std::process::id()) {
        assert_eq!(hook.one(&inside), ACCEPTED);
    }
    script.end();
    assert_eq!(hook.one(&own), ACCEPTED);
    let back = format!("{EVENT}\npbs.server().vnode(n1[0]).comment=gpuos: GPU 0 is out")
        .replace("n1[0]).state=64", "n1[0]).state=65");
    let (hook, socket) = self::hook("other.sock");
    let _told = gpuosd(&socket, vec![json!({ "out": [], "look": true })]);
    let wanted = format!(
        "{ACCEPTED}pbs.event().vnode_list[\"n1[0]\"].comment=\npbs.event().vnode_list[\"n1[0]\"].state=free\n"
    );
    assert_eq!(hook.one(&back), wanted);
}

#[test]
fn a_gpuosd_that_hangs_or_is_not_there_keeps_nobody() {
    if !has_python() {
        return;
    }
    let (hook, socket) = hook("gpuosd.sock");
    assert_eq!(hook.one(EVENT), ACCEPTED);
    // It takes connections and says nothing.
    let silent = UnixListener::bind(format!("{}.root", socket.display())).expect("a socket");
    let launch = "pbs.event().type=execjob_launch\npbs.get_local_nodename()=n1\npbs.event().job.id=1.head\n\
                  pbs.event().job.exec_vnode=(n1[0]:ngpus=1)\npbs.event().env=\"\"\"A=1\"\"\"";
    let began = Instant::now();
    let said = hook.run(&[launch, EVENT]);
    assert!(
        said[0].contains("CUDA_VISIBLE_DEVICES]=GPU-a"),
        "{}",
        said[0]
    );
    assert!(
        said[1].contains("log=gpuosd on this host gave no answer: it took longer than 1000 ms"),
        "{}",
        said[1]
    );
    assert!(said[1].ends_with(ACCEPTED), "{}", said[1]);
    // Far more than one second, on a machine with much else to do; without a limit it would be for ever.
    assert!(began.elapsed() < Duration::from_secs(120));
    drop(silent);
}

#[test]
fn a_launch_is_told_to_gpuosd() {
    if !has_python() {
        return;
    }
    let (hook, socket) = hook("gpuosd.sock");
    let told = gpuosd(&socket, vec![json!({})]);
    let launch = "pbs.event().type=execjob_launch\npbs.get_local_nodename()=n1\npbs.event().job.id=1.head\n\
                  pbs.event().job.exec_vnode=(n1[1]:ngpus=1)\npbs.event().job.euser=root\npbs.event().job.run_version=2\n\
                  pbs.event().env=\"\"\"A=1\"\"\"";
    // The library gives up early, so that no launch waits: on a busy machine it may not have come to tell.
    let told = (0..20).find_map(|_| {
        assert!(hook.one(launch).contains("CUDA_VISIBLE_DEVICES]=GPU-b"));
        told.recv_timeout(Duration::from_secs(2)).ok()
    });
    let report = told.expect("told")["report"].clone();
    assert_eq!(report["jobs"][0]["gpus"], json!([1]));
    assert_eq!(
        (&report["all"], &report["jobs"][0]["run"]),
        (&json!(false), &json!(2))
    );
}
