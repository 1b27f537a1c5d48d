//! How long an event waits: no longer, with all that it asks, than half the hook's alarm, after which PBS ends it.

#[path = "../src/budget.rs"]
mod budget;

use std::cell::Cell;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use gpuos_pbs::hook::install::{ALARM, Objects, install};
use gpuos_pbs::hook::talk::Talk;
use gpuos_pbs::hook::{Step, begin};
use serde_json::{Value, json};

use crate::support::{Hook, command, has_python, library, own, python};
use crate::swapped::Swapped;

const HALF: u64 = ALARM * 1000 / 2;

/// A number of the hook's own, by its name.
fn of_hook(name: &str) -> u64 {
    let text = std::fs::read_to_string(own("gpuos_hook.py")).expect("the hook");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let value = lines.find_map(|line| line.strip_prefix(" = "));
    value.and_then(|value| value.parse().ok()).expect(name)
}

/// What the library asks of daemons in an event; nobody is asked where there is nothing to ask.
fn talks(event: &Value) -> Vec<Talk> {
    match begin(&event.to_string()) {
        Step::Ask(question) => question.talks,
        Step::Done(_) => Vec::new(),
    }
}

/// Milliseconds of them all, one after the other.
fn whole(event: &Value) -> u64 {
    talks(event).iter().map(|talk| talk.patience_ms).sum()
}

fn event(kind: &str) -> Value {
    json!({
        "schema": "gpuos.pbs/1", "event": kind, "host": "n1", "gpuosd": "/run/g.sock", "mover": "/run/m.sock", "checkpoints": true,
        "preload": "/usr/lib/gpuos/libgpuos_preload.so.0", "parent": { "pid": 4711, "started": 99 },
        "hosts": { "n1": { "gpus": [{}, { "shares": 4 }, { "mig": { "board": "h100", "compute": 7, "memory": 8 } }] } },
    })
}

/// Starts of all kinds of programs: with each of what jobs ask for, on the host of the script and on another one, the first and a later one.
fn launches() -> Vec<Value> {
    let asked = [
        ("", "", ":ngpus=1"),
        ("gpuos_power", "300W", ":ngpus=1"),
        ("gpuos_clocks", "1200-1500", ":ngpus=1"),
        ("gpuos_mps", "50%", ":ngpus=1"),
        (
            "gpuos_mem",
            "120G,policy=lru",
            ":ngpus=1:mem=57gb:gpuos_mem_beyond=41gb",
        ),
        (
            "gpuos_share",
            "timeslice,mem=60G",
            ":mem=76gb:gpuos_share_parts=2",
        ),
        (
            "gpuos_mig",
            "1g.10gb",
            ":gpuos_mig_compute=1:gpuos_mig_memory=1",
        ),
    ];
    let mut all = Vec::new();
    for (name, value, given) in asked {
        for (hosts, first) in [
            (["n1", "n2"], true),
            (["n2", "n1"], true),
            (["n1", "n2"], false),
        ] {
            for saves in [false, true] {
                for confine in ["off", "try", "require"] {
                    let mut launch = event("execjob_launch");
                    let mut resources = json!({});
                    if !name.is_empty() {
                        resources[name] = value.into();
                    }
                    if saves {
                        resources["gpuos_checkpoint"] = "10m".into();
                    }
                    let given = hosts.map(|host| format!("({host}{given})")).join("+");
                    launch["confine"] = confine.into();
                    launch["first"] = first.into();
                    launch["job"] = json!({
                        "id": "1.head", "resources": resources, "exec_vnode": given, "user": "ann", "uid": 7, "gid": 7, "run": 1,
                    });
                    all.push(launch);
                }
            }
        }
    }
    all
}

#[test]
fn no_event_of_a_mom_waits_longer_than_half_the_alarm() {
    let all = launches();
    let launches: Vec<u64> = all.iter().map(whole).collect();
    let most = launches.iter().max().expect("starts");
    // With all three: slices, a group and a folder for checkpoints.
    assert!(all.iter().any(|launch| talks(launch).len() == 3));
    assert!((46_000..=HALF).contains(most), "{most} ms of {HALF}");
    // For another program than the first mom itself waits.
    let least = launches.iter().min().expect("starts");
    assert!(*least <= 3_000, "{least} ms");

    let saving = json!({ "gpuos_checkpoint": "10m" });
    let mut end = event("execjob_end");
    end["job"] =
        json!({ "id": "1.head", "exec_vnode": "(n1:ngpus=1)", "run": 1, "resources": saving });
    assert_eq!(talks(&end).len(), 2);
    assert!(whole(&end) <= HALF);

    let mut periodic = event("exechost_periodic");
    periodic["jobs"] =
        json!({ "1.head": { "exec_vnode": "(n1:ngpus=1)", "run": 1, "resources": saving } });
    assert_eq!(talks(&periodic).len(), 2);
    // It is asked again with what pbs_server says.
    assert!(whole(&periodic) * (of_hook("TURNS") + 1) <= HALF);
}

#[test]
fn the_hook_waits_no_longer_than_half_the_alarm_from_its_start() {
    let lines = install(
        &Objects::new(),
        &Objects::new(),
        "23.06.06",
        ("/t/h.py", "/t/h.json"),
    );
    let lines = lines.expect("lines for qmgr");
    assert!(lines.contains(&format!("set hook gpuos alarm = \"{ALARM}\"")));
    assert!(of_hook("WITHIN") * 1000 <= HALF);
    // A program that has to be kept to its GPUs is tried for less than that, and the last try has what is left.
    assert!(of_hook("CONFINED_WITHIN") < of_hook("WITHIN"));
    // Events of the server, by the command.
    assert!((of_hook("TURNS") + 1) * of_hook("PATIENCE") * 1000 <= HALF);
}

#[test]
fn a_talk_has_no_more_than_those_before_have_left() {
    let mut launch = launches().pop().expect("a start");
    launch["first"] = true.into();
    launch["job"]["exec_vnode"] = "(n1:gpuos_mig_compute=1:gpuos_mig_memory=1)".into();
    let talks = talks(&launch);
    let own: Vec<u64> = talks.iter().map(|talk| talk.patience_ms).collect();
    assert_eq!(own.len(), 3, "{own:?}");
    for within in [HALF, own[0] + 1500, own[0], 1000, 0] {
        let clock = Cell::new(0);
        let patient = Cell::new(Vec::new());
        let spent = || Duration::from_millis(clock.get());
        // Nobody says anything, ever.
        let silent = |talk: Talk| {
            clock.set(clock.get() + talk.patience_ms);
            patient.set([patient.take(), vec![talk.patience_ms]].concat());
            Err("it took longer".to_owned())
        };
        let said = budget::each(&talks, Duration::from_millis(within), spent, silent);
        assert_eq!(said.len(), 3);
        assert!(clock.get() <= within, "{} of {within} ms", clock.get());
        let wanted: u64 = own.iter().sum::<u64>().min(within);
        assert_eq!(clock.get(), wanted, "what is there is used");
        let asked = patient.take().len();
        let left_out = said.iter().filter(|said| {
            said.as_ref()
                .is_err_and(|why| why == "the event had no time left for it")
        });
        assert_eq!(left_out.count(), 3 - asked);
    }
}

#[test]
fn the_hook_says_what_is_left_and_no_more_than_half_the_alarm_counts() {
    for (said, wanted) in [
        ("{\"within_ms\":1500}", 1500),
        ("{\"within_ms\":0}", 0),
        ("{}", HALF),
        ("{\"within_ms\":-1}", HALF),
        ("{\"within_ms\":\"1\"}", HALF),
        ("{\"within_ms\":99999999999}", HALF),
        ("no JSON", HALF),
    ] {
        assert_eq!(budget::of(said), Duration::from_millis(wanted), "{said}");
    }
}

/// Asks the library about the event of its standard input.
const CALL: &str = r"
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.gpuos_pbs_event.restype = ctypes.c_void_p
sys.stdout.write(ctypes.string_at(library.gpuos_pbs_event(sys.stdin.read().encode())).decode())
";

#[test]
fn daemons_that_say_nothing_have_the_time_of_the_event_together() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let sockets = ["g.sock", "m.sock"].map(|name| folder.path().join(name));
    // They take connections, and say nothing.
    let silent = sockets
        .each_ref()
        .map(|socket| UnixListener::bind(format!("{}.root", socket.display())).expect("a socket"));
    let mut launch = event("execjob_launch");
    launch["gpuosd"] = json!(sockets[0]);
    launch["mover"] = json!(sockets[1]);
    launch["within_ms"] = 250.into();
    launch["job"] = json!({
        "id": "1.head", "exec_vnode": "(n1:ngpus=1)", "user": "ann", "uid": 7, "gid": 7, "run": 1,
        "resources": { "gpuos_power": "300W", "gpuos_checkpoint": "10m" },
    });
    let library = library();
    let arguments = ["-c".as_ref(), CALL.as_ref(), library.as_path()];
    let (said, _) = python(&arguments, &launch.to_string(), &[]);
    let said: Value = serde_json::from_str(&said).expect("an answer");
    assert_eq!(said["verdict"], "accept");
    let notes = said["notes"].as_array().expect("notes");
    let note = |about: &str| {
        let mut texts = notes.iter().filter_map(Value::as_str);
        texts
            .find(|note| note.contains(about))
            .expect(about)
            .to_owned()
    };
    // The first had all of it, unless this machine was too busy for even that.
    let of_gpuosd = note("power and clocks");
    assert!(!of_gpuosd.contains("3000 ms"), "{of_gpuosd}");
    let of_mover = note("no checkpoints");
    assert!(of_mover.contains("had no time left for it"), "{of_mover}");
    drop(silent);
}

#[test]
fn a_start_that_is_tried_again_has_what_is_left_of_its_time() {
    if !has_python() {
        return;
    }
    let hook = Hook::with("{}");
    let refusal = json!({
        "schema": "gpuos.pbs/1", "verdict": "reject", "message": "gpuos cannot keep this program to the GPUs of its job", "edits": [],
    });
    let refusal = refusal.to_string().into_bytes();
    let swapped = Swapped::build(&hook.path(""), "refuses", 1, Some(&refusal));
    let known = json!({
        "command": command(), "library": swapped.library, "hosts": { "n1": { "gpus": [{}] } }, "confine": "require",
    });
    std::fs::write(hook.path("hook.json"), known.to_string()).expect("a file");
    // A program of a session of this number, of a job whose session has that one.
    let launch = |own: u32, tick: u64| {
        format!(
            "pbs.event().type=execjob_launch\npbs.get_local_nodename()=n1\npbs.event().job.id=1.head\npbs.event().env=\"\"\"A=1\"\"\"\n\
             pbs.event().job.exec_vnode=(n1:ngpus=1)\npbs.event().job.session_id=4711\ngetsid={own}\nticks={tick}"
        )
    };
    // A clock that is 3 s later at each look: at the start, before each question, and before each new try, which comes a second after that look.
    let first = hook.one(&launch(4711, 3));
    assert!(
        first.contains("reject_msg=gpuos cannot keep this program"),
        "{first}"
    );
    assert!(first.contains("_rerun=True"), "{first}");
    let left = |asked: &[Value]| -> Vec<u64> {
        let left = asked.iter().map(|event| event["within_ms"].as_u64());
        left.collect::<Option<_>>().expect("what is left")
    };
    let asked = swapped.asked();
    assert_eq!(left(&asked), [57_000, 50_000, 43_000]);
    // One question takes so long that nothing is left for another.
    let slow = hook.one(&launch(4711, 70));
    assert!(slow.contains("accept=False"), "{slow}");
    let asked = swapped.asked();
    assert_eq!(left(&asked[3..]), [0]);
    // For another program than the first mom itself waits.
    let later = hook.one(&launch(4712, 3));
    assert!(
        later.contains("accept=False") && !later.contains("_rerun"),
        "{later}"
    );
    assert_eq!(swapped.asked().len(), 5);
}
