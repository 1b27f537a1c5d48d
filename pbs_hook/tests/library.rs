//! The three functions of libgpuos_pbs_hook.so, called by ctypes as the hook calls them.

use serde_json::Value;

use crate::support::{has_python, library, python};

/// Loads the library, and says for each case what came back; whatever it printed itself would be lines that are none of these.
const CALLS: &str = r#"
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
library.gpuos_pbs_version.restype = ctypes.c_uint32
library.gpuos_pbs_event.restype = ctypes.c_void_p
library.gpuos_pbs_event.argtypes = [ctypes.c_void_p]
library.gpuos_pbs_free.argtypes = [ctypes.c_void_p]
library.gpuos_pbs_free.restype = None
library.gpuos_pbs_free(None)
def ask(event):
    held = event if event is None else ctypes.create_string_buffer(event)
    said = library.gpuos_pbs_event(held if event is None else ctypes.addressof(held))
    text = ctypes.string_at(said).decode("utf-8")
    library.gpuos_pbs_free(said)
    return json.loads(text)
good = b'{"schema":"gpuos.pbs/1","event":"queuejob","job":{"resources":{"select":"1:ngpus=1","gpuos_topology":"leaf"}}}'
cases = {
    "good": good,
    "null": None,
    "empty": b"",
    "nul": good[:40] + b"\0" + good[40:],
    "bad": b"{" * 1000,
    "latin": b"\xff\xfe",
    "mib": b'"' + b"x" * (1 << 20) + b'"',
    "more": b"y" * (9 << 20),
    "planted": good.replace(b"leaf", b"PLANTED"),
    "again": good,
}
answers = {name: ask(event) for name, event in cases.items()}
for turn in range(2000):
    assert ask(good) == answers["good"]
print(json.dumps({"version": library.gpuos_pbs_version(), "answers": answers}))
"#;

fn answers(environment: &[(&str, &str)]) -> Value {
    let library = library();
    let (out, error) = python(&["-c".as_ref(), CALLS.as_ref(), &library], "", environment);
    assert_eq!(error, "");
    assert_eq!(out.lines().count(), 1, "the library prints nothing: {out}");
    serde_json::from_str(&out).expect("one line of JSON")
}

#[test]
fn any_bytes_get_an_answer() {
    if !has_python() {
        return;
    }
    let said = answers(&[]);
    assert_eq!(said["version"], 1);
    let answers = &said["answers"];
    assert_eq!(answers["good"]["verdict"], "accept");
    assert_eq!(
        answers["good"]["edits"][0]["value"],
        "free:group=gpuos_leaf"
    );
    assert_eq!(answers["good"], answers["again"]);
    for none in ["null", "empty", "nul", "bad", "latin", "mib", "more"] {
        let answer = &answers[none];
        assert_eq!(answer["verdict"], "error", "{none}: {answer}");
        assert!(
            answer["message"]
                .as_str()
                .is_some_and(|why| !why.is_empty()),
            "{none}: {answer}"
        );
    }
    assert_eq!(answers["planted"]["verdict"], "reject");
}

#[test]
fn a_panic_is_an_answer_and_says_nothing_elsewhere() {
    if !has_python() {
        return;
    }
    if !cfg!(debug_assertions) {
        eprintln!("skipped: a release build has no planted errors");
        return;
    }
    let said = answers(&[("GPUOS_PBS_MUTANT", "PLANTED"), ("RUST_BACKTRACE", "1")]);
    let answers = &said["answers"];
    assert_eq!(answers["planted"]["verdict"], "error");
    assert!(
        answers["planted"]["message"]
            .as_str()
            .unwrap()
            .contains("failed on this event")
    );
    assert_eq!(
        answers["again"]["verdict"], "accept",
        "the next event is none of it"
    );
}

/// What C programs see: the header names the functions that are there, and the same version.
#[test]
fn header_and_library_have_the_same_functions() {
    let header = std::fs::read_to_string(crate::support::own("../include/gpuos_pbs.h")).unwrap();
    assert!(header.contains("#define GPUOS_PBS_VERSION 1\n"));
    for function in [
        "gpuos_pbs_version(void)",
        "gpuos_pbs_event(const char *json)",
        "gpuos_pbs_free(char *answer)",
    ] {
        assert!(header.contains(function), "{function}");
    }
}
