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
pbs.event().vnode_list[\"n1\"].resources_available[ncpus]=8
pbs.event().job_list[\"1.head\"].exec_vnode=(n1:ncpus=1:ngpus=1)
pbs.event().job_list[\"1.head\"].euser=root
pbs.event().job_list[\"1.head\"].session_id=4711
pbs.event().job_list[\"1.head\"].run_version=3
pbs.event().job_list[\"2.head\"].exec_vnode=(n1:ncpus=1)
pbs.event().job_list[\"2.head\"].euser=nobody-here
pbs.server().vnode(n1).state=64
pbs.server().vnode(n1).resources_available[ngpus]=2
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

/// What a host of two GPUs shows of which one is out of service.
fn one_is_out() -> Value {
    json!({ "whole": 1, "linked": 1, "shown": "whole=0-1;free=1;out=0" })
}

#[test]
fn a_mom_tells_its_jobs_and_does_what_gpuosd_says() {
    if !has_python() {
        return;
    }
    let (hook, socket) = hook("gpuosd.sock");
    let orders =
        json!({ "room": one_is_out(), "look": true, "host": "online", "rerun": { "1.head": 0 } });
    let told = gpuosd(&socket, vec![json!({ "look": true }), orders]);
    let said = hook.one(EVENT);
    let vnode = "pbs.event().vnode_list[\"n1\"]";
    let wanted = format!(
        "{ACCEPTED}pbs.event().job_list[\"1.head\"]._rerun=True\n\
         {vnode}.comment=gpuos: GPU 0 is out of service; gpuos health on n1 says why\n\
         {vnode}.resources_available[gpuos_host,string]=whole=0-1;free=1;out=0\n\
         {vnode}.resources_available[gpuos_ngpus,string]=2>1\n\
         {vnode}.resources_available[ngpus,long]=1\n"
    );
    assert_eq!(said, wanted);
    let first = told.recv().expect("told")["report"].clone();
    assert_eq!(
        first["described"],
        json!([{ "uuid": "GPU-a" }, { "uuid": "GPU-b" }])
    );
    let job = json!({
        "job": "1.head", "user": "root", "uid": 0, "gpus": [], "count": 1, "run": 3, "hosts": "n1", "script_on": "n1",
    });
    assert_eq!(
        (&first["jobs"], &first["all"]),
        (&json!([job]), &json!(true))
    );
    let second = told.recv().expect("told")["report"].clone();
    assert_eq!(
        (&second["host"], &second["asked"]),
        (&json!({ "offline": false, "counted": 2 }), &json!(true))
    );
}

/// All is as it should be, a GPU is back, the host is drained: what is not another is not set.
#[test]
fn a_mom_changes_what_is_another() {
    if !has_python() {
        return;
    }
    let vnode = "pbs.server().vnode(n1)";
    let down = format!(
        "{}\n{vnode}.resources_available[gpuos_ngpus]=2>1\n{vnode}.resources_available[gpuos_host]=whole=0-1;free=1;out=0\n\
         {vnode}.comment=gpuos: GPU 0 is out of service; gpuos health on n1 says why",
        EVENT.replace("[ngpus]=2", "[ngpus]=1")
    );
    let own = "pbs.event().vnode_list[\"n1\"]";
    let back = json!({ "room": { "whole": 2, "shown": "whole=0-1;free=0-1;out=-" }, "look": true, "host": "online" });
    let drained =
        json!({ "room": one_is_out(), "look": true, "host": { "offline": "gpuos: dust" } });
    let up = format!(
        "{own}.comment=\n{own}.resources_available[gpuos_host,string]=whole=0-1;free=0-1;out=-\n\
         {own}.resources_available[gpuos_ngpus,string]=\n{own}.resources_available[ngpus,long]=2\n"
    );
    let offline = format!("{own}.comment=gpuos: host: dust\n{own}.state=offline\n");
    for (at, (orders, wanted)) in [
        (
            json!({ "room": one_is_out(), "look": true, "host": "online" }),
            String::new(),
        ),
        (json!({ "look": true }), String::new()),
        (back, up),
        (drained, offline),
    ]
    .into_iter()
    .enumerate()
    {
        let (hook, socket) = hook(&format!("{at}.sock"));
        let _told = gpuosd(&socket, vec![orders]);
        assert_eq!(hook.one(&down), format!("{ACCEPTED}{wanted}"), "{at}");
    }
    // It is offline by gpuos's word, and well.
    let offline = down
        .replace(
            "comment=gpuos: GPU 0 is out of service; gpuos health on n1 says why",
            "comment=gpuos: host: dust",
        )
        .replace("state=64", "state=65");
    let (hook, socket) = hook("online.sock");
    let _told = gpuosd(&socket, vec![json!({ "look": true, "host": "online" })]);
    assert_eq!(
        hook.one(&offline),
        format!("{ACCEPTED}{own}.comment=\n{own}.state=free\n")
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
                  pbs.event().job.exec_vnode=(n1:ngpus=1)\npbs.event().env=\"\"\"A=1\"\"\"";
    let began = Instant::now();
    let said = hook.run(&[launch, EVENT]);
    let note = "note=gpuos: no GPUs are chosen for this job, and its programs find all of the host as in PBS without gpuos: gpuosd on this host gave";
    assert!(
        said[0].starts_with(note) && said[0].ends_with(ACCEPTED),
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

const LAUNCH: &str = "pbs.event().type=execjob_launch\npbs.get_local_nodename()=n1\npbs.event().job.id=1.head\n\
                      pbs.event().job.exec_vnode=(n1:ngpus=1)\npbs.event().job.euser=root\npbs.event().job.run_version=2\n\
                      pbs.event().env=\"\"\"A=1,LIST=x\\,y\"\"\"";

/// What comes of a launch where gpuosd says this. The library gives up early, so that no launch waits long: on a busy machine it may not have come to that.
fn launched(hook: &Hook, event: &str) -> String {
    let said = (0..20).map(|_| hook.one(event));
    let mut said = said.filter(|said| !said.contains("it took longer"));
    said.next().expect("gpuosd has said something")
}

#[test]
fn a_program_finds_what_gpuosd_has_chosen_and_what_it_had() {
    if !has_python() {
        return;
    }
    let (hook, socket) = hook("gpuosd.sock");
    let told = gpuosd(
        &socket,
        vec![json!({ "chosen": { "1.head": { "gpus": [1] } } })],
    );
    assert_eq!(
        launched(&hook, LAUNCH),
        format!(
            "{ACCEPTED}pbs.event().env[CUDA_DEVICE_ORDER]=PCI_BUS_ID\npbs.event().env[CUDA_VISIBLE_DEVICES]=GPU-b\n\
             pbs.event().env[GPUOS_GPUS]=1\npbs.event().env[GPUOS_LEVEL]=node\n"
        )
    );
    let report = told.recv().expect("told")["report"].clone();
    assert_eq!(report["jobs"][0]["count"], json!(1));
    assert_eq!(
        (&report["all"], &report["jobs"][0]["run"]),
        (&json!(false), &json!(2))
    );
    // A vnode of a release that made one of each GPU is that GPU, by whatever gpuosd says.
    let known = json!({ "gpus": [{ "uuid": "GPU-a" }, { "uuid": "GPU-b" }], "former": [0] });
    let (former, _) = hook_of(&json!({ "n1": known }), "nobody.sock");
    let said = former.one(&LAUNCH.replace("(n1:", "(n1[0]:"));
    assert!(
        said.starts_with(ACCEPTED) && said.contains("env[CUDA_VISIBLE_DEVICES]=GPU-a\n"),
        "{said}"
    );
}

/// Of a job that says nothing to gpuos, too.
#[test]
fn a_program_whose_gpus_are_not_there_is_not_started() {
    if !has_python() {
        return;
    }
    let (hook, socket) = hook("gpuosd.sock");
    let _told = gpuosd(
        &socket,
        vec![json!({ "chosen": { "1.head": { "refused": "GPU 1 has a fault" } } })],
    );
    let said = launched(&hook, LAUNCH);
    assert!(said.contains("reject_msg=the GPUs of this job are not there, and it is queued again: GPU 1 has a fault\n"), "{said}");
    assert!(said.contains("_rerun=True"), "PBS would delete it: {said}");
    // Of another program than the first the job goes on, and on another host than that of its script.
    let later = format!("{LAUNCH}\npbs.event().job.session_id=4711\ngetsid=4712");
    let sister = LAUNCH.replace("(n1:ngpus=1)", "(n2:ngpus=1)+(n1:ngpus=1)");
    for event in [later, sister] {
        let said = launched(&hook, &event);
        assert!(
            said.contains("accept=False") && said.contains("this program of it is not started"),
            "{said}"
        );
        assert!(!said.contains("_rerun"), "{said}");
    }
}
