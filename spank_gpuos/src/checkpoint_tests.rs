//! What gpuos_mover is asked, and what of its answer is taken.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use gpuos_core::wire::{MAX_REPLY, PROTOCOL, Reply, encode, root_socket};

use super::*;

/// A folder with a socket in it, gone after the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let name = format!("gpuos-mover-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Place(folder)
    }

    fn socket(&self) -> String {
        self.0.join("sock").to_str().unwrap().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The next client and what it has said, once it has said all.
fn asked_by(listener: &UnixListener) -> (UnixStream, String) {
    let (mut client, _) = listener.accept().unwrap();
    let mut text = Vec::new();
    while text.iter().filter(|byte| **byte == b'\n').count() < 2 {
        let mut bytes = [0; 512];
        let count = client.read(&mut bytes).unwrap();
        text.extend(&bytes[..count]);
    }
    (client, String::from_utf8(text).unwrap())
}

/// Answers the next client with this folder.
fn gives(listener: &UnixListener, folder: &str) {
    let (mut client, _) = asked_by(listener);
    let reply = prepared(&[(CHECKPOINT_VARIABLE, folder)], &[], None);
    client
        .write_all(&encode(&reply, MAX_REPLY).unwrap())
        .unwrap();
}

fn step() -> CheckpointRequest {
    CheckpointRequest::Step {
        id: StepId {
            job: 7.into(),
            step: 0,
        },
        uid: 1000,
        gid: 100,
        asked: "10m,l2=partner".into(),
        start: None,
    }
}

fn prepared(environment: &[(&str, &str)], notes: &[&str], failed: Option<&str>) -> Reply {
    let pairs = environment.iter();
    Reply::Prepared {
        notes: notes.iter().map(|note| (*note).to_owned()).collect(),
        environment: pairs
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect(),
        failed: failed.map(String::from),
    }
}

/// Long enough for any machine.
const LONG: Duration = Duration::from_secs(60);

/// What comes of these answers, one after the other, and how often the mover was asked.
fn told(name: &str, replies: Vec<Reply>) -> Told {
    let place = Place::new(name);
    let listener = UnixListener::bind(place.socket()).unwrap();
    let answers = std::thread::spawn(move || {
        for reply in replies {
            let (mut client, text) = asked_by(&listener);
            let (hello, request) = text.split_once('\n').unwrap();
            assert!(hello.contains("hello"), "{text}");
            for part in [
                "\"checkpoint\"",
                "\"job\":7",
                "\"gid\":100",
                "10m,l2=partner",
            ] {
                assert!(request.contains(part), "{text}");
            }
            let hello = Reply::Hello {
                protocol: PROTOCOL,
                release: "x".into(),
                node: "n1".into(),
            };
            for line in [hello, reply] {
                client
                    .write_all(&encode(&line, MAX_REPLY).unwrap())
                    .unwrap();
            }
        }
    });
    let told = ask(&place.socket(), step(), (LONG, LONG));
    answers.join().unwrap();
    told
}

#[test]
fn the_folder_of_the_answer_is_taken_and_nothing_else() {
    let reply = prepared(
        &[
            (CHECKPOINT_VARIABLE, "/var/lib/gpuos/jobs/7"),
            ("LD_PRELOAD", "/x.so"),
        ],
        &["the disk is nearly full"],
        None,
    );
    let told = told("taken", vec![reply]);
    assert_eq!(told.folder.as_deref(), Some("/var/lib/gpuos/jobs/7"));
    assert_eq!(told.notes, ["the disk is nearly full"]);
}

#[test]
fn a_folder_that_is_none_is_not_taken() {
    let long = format!("/{}", "x".repeat(5000));
    for (at, bad) in ["", "jobs/7", "/a\nb", "/a b", "/a/../etc", long.as_str()]
        .into_iter()
        .enumerate()
    {
        let reply = prepared(&[(CHECKPOINT_VARIABLE, bad)], &[], None);
        let told = told(&format!("bad{at}"), vec![reply]);
        assert_eq!(told.folder, None, "{bad}");
        assert!(
            told.notes[0].starts_with("checkpoints are not made: "),
            "{told:?}"
        );
    }
}

#[test]
fn what_the_mover_cannot_do_is_a_note_and_no_more() {
    let failed = prepared(&[], &[], Some("no room"));
    let notes = told("failed", vec![failed]).notes;
    assert_eq!(notes, ["checkpoints are not made: no room"]);
    let message = "job 7 is not yours".to_owned();
    let refused = Reply::Refused {
        code: Code::Forbidden,
        message,
    };
    let told_no = told("refused", vec![refused]);
    assert_eq!(
        told_no.notes,
        ["checkpoints are not made: job 7 is not yours"]
    );
    let done = Reply::Done {
        message: "x".into(),
    };
    assert!(told("done", vec![done]).notes[0].contains("gave no folder"));
    // It says why by itself.
    let silent = told("noted", vec![prepared(&[], &["it is switched off"], None)]);
    assert_eq!(silent.notes, ["it is switched off"]);
    assert_eq!(silent.folder, None);
}

#[test]
fn a_mover_that_has_much_to_do_is_asked_again() {
    let busy = Reply::Refused {
        code: Code::Busy,
        message: "later".into(),
    };
    let good = prepared(&[(CHECKPOINT_VARIABLE, "/jobs/7")], &[], None);
    let told = told("busy", vec![busy, good]);
    assert_eq!(
        (told.folder.as_deref(), told.notes.len()),
        (Some("/jobs/7"), 0)
    );
}

#[test]
fn a_mover_that_is_started_anew_is_waited_for() {
    let place = Place::new("anew");
    let socket = place.socket();
    let starts = std::thread::spawn(move || {
        std::thread::sleep(AGAIN);
        let listener = UnixListener::bind(socket).unwrap();
        gives(&listener, "/jobs/7");
    });
    let told = ask(&place.socket(), step(), (LONG, LONG));
    starts.join().unwrap();
    assert_eq!(
        (told.folder.as_deref(), told.notes.len()),
        (Some("/jobs/7"), 0)
    );
}

#[test]
fn without_an_answer_the_step_runs_on() {
    let said = "checkpoints are not made: no gpuos_mover answers on this node";
    let place = Place::new("none");
    let short = 2 * AGAIN;
    assert_eq!(ask(&place.socket(), step(), (short, short)).notes, [said]);
    // One that goes away, and one that says nothing.
    let listener = UnixListener::bind(place.socket()).unwrap();
    let answering = listener.try_clone().unwrap();
    let goes = std::thread::spawn(move || drop(asked_by(&answering)));
    assert_eq!(ask(&place.socket(), step(), (short, short)).notes, [said]);
    goes.join().unwrap();
    assert_eq!(
        ask(&place.socket(), step(), (Duration::ZERO, Duration::ZERO)).notes,
        [said]
    );
}

#[test]
fn roots_own_socket_is_asked_first() {
    let place = Place::new("root");
    let listener = UnixListener::bind(root_socket(&place.socket())).unwrap();
    let answers = std::thread::spawn(move || gives(&listener, "/jobs/7"));
    let told = ask(&place.socket(), step(), (LONG, LONG));
    assert_eq!(told.folder.as_deref(), Some("/jobs/7"));
    answers.join().unwrap();
}

#[test]
fn the_job_decides_and_a_step_does_not() {
    let some = |text: &str| Some(text.to_owned());
    for (noted, handed, whole_job, wanted) in [
        (None, None, false, None),
        // A batch script, whose variables --export may have left out.
        (some("10m"), None, true, some("10m")),
        (some("10m"), some("5m"), true, some("10m")),
        // salloc's shell, and steps in a job.
        (None, some("5m,L2=single"), true, some("5m,l2=single")),
        (some("10m"), some("5m"), false, some("5m")),
        (some("10m"), some("off"), false, None),
        (some("off"), some("5m"), false, some("5m")),
        // A job of srun's own.
        (some("90s"), None, false, some("90s")),
        (some("90s"), some(""), false, some("90s")),
        (None, some("nonsense; rm"), false, None),
        (some("off"), None, true, None),
    ] {
        let case = format!("{noted:?} {handed:?} {whole_job}");
        assert_eq!(wish(chosen(noted, handed, whole_job)), wanted, "{case}");
    }
}

#[test]
fn a_step_is_the_program_by_a_number_and_a_batch_script_never() {
    for (handed, whole_job, wanted) in [
        (Some("1"), false, Some(1)),
        (Some("4294967295"), false, Some(u32::MAX)),
        (Some("1"), true, None),
        (None, false, None),
        (Some("0"), false, None),
        (Some("-1"), false, None),
        (Some("4294967296"), false, None),
        (Some("1 n2"), false, None),
        (Some(""), false, None),
    ] {
        let handed = handed.map(String::from);
        assert_eq!(start(handed.clone(), whole_job), wanted, "{handed:?}");
    }
}

#[test]
fn arguments_name_the_socket_and_the_folder_of_jobs() {
    let words = [c"jobs=/x/%n", c"mover=/y", c"mover=/z/%n", c"moverX=/no"];
    let mut argv: Vec<*mut c_char> = words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    // SAFETY: four C strings.
    let named = unsafe { places(4, argv.as_mut_ptr()) };
    assert_eq!(named, ("/z/%n".to_owned(), "/x/%n".to_owned()));
    // SAFETY: none at all.
    let usual = unsafe { places(0, std::ptr::null()) };
    assert_eq!(usual, (SOCKET.to_owned(), JOBS.to_owned()));
}

#[test]
fn a_mover_that_is_away_is_waited_for_a_moment_and_then_the_folder_is_made() {
    let place = Place::new("away");
    let begun = Instant::now();
    let told = ask_or_go_ahead(&place.socket(), &step(), PATIENCE, || {
        Some("/jobs/7".into())
    });
    assert_eq!(told.folder.as_deref(), Some("/jobs/7"));
    assert!(
        told.notes[0].contains("the program waits for it"),
        "{told:?}"
    );
    assert!(begun.elapsed() >= COMES_BACK - 2 * AGAIN);
    // Where none can be made it runs without.
    let told = ask_or_go_ahead(&place.socket(), &step(), PATIENCE, || None);
    assert!(told.notes[0].contains("no gpuos_mover answers"), "{told:?}");
    assert_eq!(told.folder, None);
    // One that is there again just then is asked.
    let socket = place.socket();
    let listener = std::sync::Arc::new(Mutex::new(None));
    let made = listener.clone();
    let answers = std::thread::spawn({
        let listener = listener.clone();
        move || {
            let listener = loop {
                if let Some(listener) = listener.lock().unwrap().take() {
                    break listener;
                }
                std::thread::yield_now();
            };
            let listener: UnixListener = listener;
            // The first connection looks whether it is there.
            drop(listener.accept().unwrap());
            gives(&listener, "/jobs/8");
        }
    });
    let told = ask_or_go_ahead(&socket, &step(), (LONG, LONG), || {
        *made.lock().unwrap() = Some(UnixListener::bind(&socket).unwrap());
        Some("/jobs/7".into())
    });
    answers.join().unwrap();
    assert_eq!(
        (told.folder.as_deref(), told.notes.len()),
        (Some("/jobs/8"), 0)
    );
}

#[test]
fn a_mover_that_takes_the_question_is_waited_for_longer() {
    let place = Place::new("slow");
    let listener = UnixListener::bind(place.socket()).unwrap();
    let answers = std::thread::spawn(move || {
        // The first look whether it is there takes a connection, too.
        std::thread::sleep(8 * AGAIN);
        gives(&listener, "/jobs/7");
    });
    let told = ask(&place.socket(), step(), (AGAIN, LONG));
    answers.join().unwrap();
    assert_eq!(told.folder.as_deref(), Some("/jobs/7"), "{told:?}");
}

#[test]
fn a_program_waits_for_a_mover_that_does_not_answer_in_time() {
    let place = Place::new("mute");
    let listener = UnixListener::bind(place.socket()).unwrap();
    let short = (AGAIN, 2 * AGAIN);
    let told = ask_or_go_ahead(&place.socket(), &step(), short, || Some("/jobs/7".into()));
    assert_eq!(told.folder.as_deref(), Some("/jobs/7"));
    assert!(
        told.notes[0].contains("the program waits for it"),
        "{told:?}"
    );
    // What it says no to, it says no to.
    drop(listener);
    std::fs::remove_file(place.socket()).unwrap();
    let listener = UnixListener::bind(place.socket()).unwrap();
    let answers = std::thread::spawn(move || {
        drop(listener.accept().unwrap());
        let (mut client, _) = asked_by(&listener);
        let no = prepared(&[], &["job 7 is not yours"], None);
        client.write_all(&encode(&no, MAX_REPLY).unwrap()).unwrap();
    });
    let told = ask_or_go_ahead(&place.socket(), &step(), (LONG, LONG), || unreachable!());
    answers.join().unwrap();
    assert_eq!(
        (told.folder, told.notes),
        (None, vec!["job 7 is not yours".to_owned()])
    );
}
