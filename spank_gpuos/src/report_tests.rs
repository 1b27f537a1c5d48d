//! What gpuosd is told of steps, and which of them wait for its answer.

use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use gpuos_config::options::OPTIONS;
use gpuos_core::wire::{MAX_REPLY, PROTOCOL, Reply, encode};

use super::*;

/// [`TOLD`] is one for the process.
static ALONE: Mutex<()> = Mutex::new(());

/// A folder of a test's own, which goes with it.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("gpuos-{name}-{}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0).unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The first step of a job, with these GPUs and nothing asked for.
fn start_of(job: u32, gpus: GpuSet) -> Start {
    Start {
        id: StepId {
            job: job.into(),
            step: 0,
        },
        uid: 1000,
        gpus,
        asked: Asked::default(),
        mig: None,
        memory: None,
        reason: Reason::Devices,
    }
}

/// The next client and what it has said, once that is all: it may not send to one that has gone.
fn said_by(listener: &UnixListener) -> (UnixStream, String) {
    let (mut client, _) = listener.accept().unwrap();
    let mut text: Vec<u8> = Vec::new();
    while text.iter().filter(|byte| **byte == b'\n').count() < 2 {
        let mut bytes = [0; 512];
        let count = client.read(&mut bytes).unwrap();
        text.extend(&bytes[..count]);
    }
    (client, String::from_utf8(text).unwrap())
}

fn asked_by(listener: &UnixListener) -> UnixStream {
    said_by(listener).0
}

#[test]
fn a_report_is_two_lines_and_nobody_at_the_other_end_is_silence() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new("report");
    let path = folder.0.join("n1.sock");
    let pattern = folder.0.join("%n.sock");
    let pattern = pattern.to_str().unwrap();
    let start = start_of(7, GpuSet::first(2));
    started(pattern, "n1", start.clone());
    assert!(TOLD.lock().unwrap().is_none());
    let listener = UnixListener::bind(&path).unwrap();
    started(pattern, "n1", start);
    let mut text = String::new();
    listener
        .accept()
        .unwrap()
        .0
        .read_to_string(&mut text)
        .unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("hello"), "{text}");
    assert!(
        lines[1].contains("\"gpus\":[0,1]") && lines[1].contains("\"job\":7"),
        "{text}"
    );
    ended();
    let mut text = String::new();
    listener
        .accept()
        .unwrap()
        .0
        .read_to_string(&mut text)
        .unwrap();
    assert!(text.contains("step-end"), "{text}");
    assert!(TOLD.lock().unwrap().is_none());
    // A daemon that does not accept: its queue fills, and then nothing waits.
    let begin = Instant::now();
    while send(path.to_str().unwrap(), &Request::Status).is_some() {
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn a_job_that_wants_its_gpus_set_waits_for_the_answer_and_not_for_ever() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new("prepared");
    let path = folder.0.join("sock");
    let text = path.to_str().unwrap();
    let mut start = start_of(8, GpuSet::first(1));
    start.asked.power = Some(gpuos_core::limits::PowerCap::Watts(300));
    let tell = || started(text, "n1", start.clone()).notes;
    assert!(tell()[0].contains("no gpuosd listens"));
    let listener = UnixListener::bind(&path).unwrap();
    let answering = listener.try_clone().unwrap();
    let answers = std::thread::spawn(move || {
        use std::io::Write;
        let mut client = asked_by(&answering);
        let notes = vec!["GPU 0: no".to_owned()];
        let hello = Reply::Hello {
            protocol: PROTOCOL,
            release: "x".into(),
            node: "n1".into(),
        };
        client
            .write_all(&encode(&hello, MAX_REPLY).unwrap())
            .unwrap();
        let prepared = Reply::Prepared {
            notes,
            environment: BTreeMap::new(),
            failed: None,
        };
        client
            .write_all(&encode(&prepared, MAX_REPLY).unwrap())
            .unwrap();
    });
    assert_eq!(tell(), ["GPU 0: no"]);
    answers.join().unwrap();
    // One that takes the report and says nothing.
    assert!(tell()[0].contains("has not answered"));
    TOLD.lock().unwrap().take();
}

/// A gpuosd from before there was memory beyond that of GPUs takes no report with it, and is to know of the step all the same.
#[test]
fn an_older_daemon_is_told_of_the_step_without_its_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new("older");
    let path = folder.0.join("sock");
    let mut start = start_of(11, GpuSet::first(1));
    start.memory = Some(StepMemory {
        bytes_per_gpu: 120 << 30,
        timeslice: false,
    });
    let listener = UnixListener::bind(&path).unwrap();
    let answers = std::thread::spawn(move || {
        use std::io::Write;
        let asked = |reply: Option<Reply>| {
            let (mut client, text) = said_by(&listener);
            if let Some(reply) = reply {
                client
                    .write_all(&encode(&reply, MAX_REPLY).unwrap())
                    .unwrap();
            }
            text
        };
        let refused = Reply::Refused {
            code: Code::Malformed,
            message: "unknown field `memory`".into(),
        };
        [asked(Some(refused)), asked(None)]
    });
    let told = started(path.to_str().unwrap(), "n1", start);
    let [first, second] = answers.join().unwrap();
    assert!(first.contains("\"bytes_per_gpu\":128849018880"), "{first}");
    assert!(
        second.contains("step-start") && !second.contains("memory"),
        "{second}"
    );
    assert!(
        told.notes[0].contains("does not know of memory beyond"),
        "{told:?}"
    );
    TOLD.lock().unwrap().take();
}

#[test]
fn a_step_with_slices_has_them_or_does_not_run() {
    let folder = Folder::new("carved");
    let path = folder.0.join("sock");
    let text = path.to_str().unwrap().to_owned();
    let request = Request::StepStart {
        id: StepId {
            job: 9.into(),
            step: 0,
        },
        uid: 1000,
        gpus: vec![],
        asked: Asked::default(),
        mig: Some(MigAsk {
            request: "1g.10gb".into(),
            slices: vec![3],
            tasks: 1,
        }),
        switchable: false,
        memory: None,
        reason: Reason::Devices,
    };
    let long = Duration::from_secs(60);
    let wait = |absence, patience| {
        let sent = send(&text, &request);
        carved(&text, (&request, Lacks::Slices), sent, (absence, patience))
    };
    let none = wait(Duration::ZERO, long).failed.unwrap();
    assert!(none.contains("no gpuosd listens"), "{none}");
    // The first one ends before it answers, the next two cannot yet, then one answers.
    let listener = UnixListener::bind(&path).unwrap();
    let answering = listener.try_clone().unwrap();
    let answers = std::thread::spawn(move || {
        use std::io::Write;
        let refuse = |code| {
            let message = "not now".into();
            let refused = Reply::Refused { code, message };
            let line = encode(&refused, MAX_REPLY).unwrap();
            asked_by(&answering).write_all(&line).unwrap();
        };
        drop(answering.accept().unwrap());
        refuse(Code::Busy);
        refuse(Code::Failed);
        let mut client = asked_by(&answering);
        let prepared = Reply::Prepared {
            notes: vec![],
            environment: [("GPUOS_MIG_UUIDS".into(), "MIG-a".into())].into(),
            failed: None,
        };
        client
            .write_all(&encode(&prepared, MAX_REPLY).unwrap())
            .unwrap();
        let mut client = asked_by(&answering);
        client
            .write_all(
                &encode(
                    &Reply::Done {
                        message: "x".into(),
                    },
                    MAX_REPLY,
                )
                .unwrap(),
            )
            .unwrap();
        refuse(Code::Unknown);
    });
    let told = wait(long, long);
    assert_eq!((told.environment.len(), told.failed), (1, None));
    let old = wait(long, long).failed.unwrap();
    assert!(old.contains("makes no slices"), "{old}");
    let unknown = wait(long, long).failed.unwrap();
    assert_eq!(unknown, "not now");
    answers.join().unwrap();
    let mute = wait(long, Duration::ZERO).failed.unwrap();
    assert!(mute.contains("has not answered within 0 s"), "{mute}");
}

#[test]
fn a_step_with_a_whole_gpu_that_moves_waits_until_it_is_whole() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new("whole");
    let path = folder.0.join("n1.sock");
    let pattern = folder.0.join("%n.sock");
    let start = |gpu: usize| start_of(10, GpuSet::EMPTY.with(gpu));
    let tell = |gpu| started(pattern.to_str().unwrap(), "n1", start(gpu));
    let listener = UnixListener::bind(&path).unwrap();
    // Nobody answers: without the file, and for a GPU that is not in it, nobody waits.
    assert_eq!(tell(6).failed, None);
    std::fs::write(folder.0.join("n1.sock.switchable"), "6-7\n").unwrap();
    assert_eq!(tell(5).failed, None);
    // Nor does the step that only holds what a job adopts.
    let mut holds = start(6);
    holds.id.step = StepId::EXTERN;
    let told = started(pattern.to_str().unwrap(), "n1", holds);
    assert_eq!(told.failed, None);
    drop([listener.accept(), listener.accept(), listener.accept()].map(Result::unwrap));
    let answering = listener.try_clone().unwrap();
    let answers = std::thread::spawn(move || {
        use std::io::Write;
        let tell = |reply: &Reply| {
            let line = encode(reply, MAX_REPLY).unwrap();
            asked_by(&answering).write_all(&line).unwrap();
        };
        let prepared = |failed: Option<&str>| Reply::Prepared {
            notes: vec![],
            environment: BTreeMap::new(),
            failed: failed.map(String::from),
        };
        // One that ends before it answers is told again.
        drop(asked_by(&answering));
        tell(&prepared(None));
        tell(&prepared(Some("job 7 has slices of it")));
        let message = "noted".into();
        tell(&Reply::Done { message });
    });
    let told = tell(6);
    assert_eq!((told.failed, told.requeues), (None, false));
    let told = tell(7);
    let why = "job 7 has slices of it".to_owned();
    assert_eq!((told.failed, told.requeues), (Some(why), true));
    // A gpuosd for which it is not MIG-switchable.
    assert_eq!(tell(6).failed, None);
    answers.join().unwrap();
    drop(listener);
    let request = Request::Status;
    let no_time = (Duration::ZERO, Duration::ZERO);
    let text = path.to_str().unwrap();
    let why = carved(text, (&request, Lacks::Whole), None, no_time).failed;
    assert!(why.unwrap().contains("may still be in MIG mode"));
    TOLD.lock().unwrap().take();
}

#[test]
fn arguments_name_the_socket() {
    let words = [c"other=1", c"socket=/x/%n"];
    let mut argv: Vec<*mut c_char> = words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    // SAFETY: two C strings.
    assert_eq!(unsafe { socket(2, argv.as_mut_ptr()) }, "/x/%n");
    // SAFETY: none at all.
    assert_eq!(unsafe { socket(0, std::ptr::null()) }, SOCKET);
}

#[test]
fn a_step_without_devices_is_told_for_an_option_that_needs_it_alone() {
    let said = Inherited::parse("watch=5");
    let none = Inherited::default();
    let need = |row: &OptionHelp| OptionHelp {
        without_gpus: row.name == "gpuos-watch",
        ..*row
    };
    let needing: Vec<OptionHelp> = OPTIONS.iter().map(need).collect();
    assert_eq!(reason(false, &said, OPTIONS), None);
    assert_eq!(reason(true, &said, OPTIONS), Some(Reason::Devices));
    assert_eq!(reason(false, &said, &needing), Some(Reason::Option));
    assert_eq!(reason(true, &said, &needing), Some(Reason::Option));
    assert_eq!(reason(false, &none, &needing), None);
}
