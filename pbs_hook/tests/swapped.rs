//! Libraries that have the three functions of libgpuos_pbs_hook.so and are none: of another release, broken, or of another one altogether.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{ACCEPTED, Hook, command, has_python};

/// A library with the functions of this one, which keeps the events that it was asked about in a file beside it, a line for each.
pub struct Swapped {
    pub library: PathBuf,
    pub events: PathBuf,
}

impl Swapped {
    /// One that says this version of itself, and this of every event; `None`: a null pointer.
    pub fn build(folder: &Path, name: &str, version: u32, answer: Option<&[u8]>) -> Swapped {
        let library = folder.join(format!("{name}.so"));
        let events = folder.join(format!("{name}.events"));
        let bytes = answer.unwrap_or_default().iter().chain(&[0]);
        let bytes: Vec<String> = bytes.map(u8::to_string).collect();
        let given = match answer {
            Some(_) => "strdup((const char *) answer)",
            None => "NULL",
        };
        let text = format!(
            "#include <stdint.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
             const unsigned char answer[] = {{ {} }};\n\
             uint32_t gpuos_pbs_version(void) {{ return {version}; }}\n\
             char *gpuos_pbs_event(const char *json) {{\n\
               FILE *to = fopen(\"{}\", \"a\");\n\
               fprintf(to, \"%s\\n\", json);\n\
               fclose(to);\n\
               return {given};\n\
             }}\n\
             void gpuos_pbs_free(char *given) {{ free(given); }}\n",
            bytes.join(", "),
            events.display(),
        );
        let source = folder.join(format!("{name}.c"));
        std::fs::write(&source, text).expect("a source");
        let mut compiler = Command::new("cc");
        compiler.args(["-D_GNU_SOURCE", "-shared", "-fPIC", "-o"]);
        let done = compiler.arg(&library).arg(&source).output();
        let done = done.expect("cc, by which cargo links as well");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}");
        Swapped { library, events }
    }

    /// What it was asked about.
    pub fn asked(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.events).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).expect("an event"))
            .collect()
    }
}

/// An answer of the form that the hook knows, with these parts changed.
fn answer(parts: &Value) -> Vec<u8> {
    let mut whole = json!({ "schema": "gpuos.pbs/1", "verdict": "accept", "edits": [] });
    for (name, value) in parts.as_object().expect("parts") {
        whole[name] = value.clone();
    }
    whole.to_string().into_bytes()
}

/// A hook that is told of a library, on a host with GPUs where a gpuosd seems to be.
fn hook_with(hook: &Hook, library: &Path) {
    let socket = hook.path("gpuosd.sock");
    std::fs::write(format!("{}.root", socket.display()), "").expect("a file");
    let known = json!({
        "command": command(), "library": library, "hosts": { "n1": { "gpus": [{}, {}] } }, "gpuosd": socket,
    });
    std::fs::write(hook.path("hook.json"), known.to_string()).expect("a file");
}

#[test]
fn a_library_of_others_harms_nobody_and_those_that_ask_are_told() {
    if !has_python() {
        return;
    }
    let variable = json!({ "set": "env", "name": "CUDA_VISIBLE_DEVICES", "value": "7" });
    let strange = |parts: &Value| Some(answer(parts));
    let bytes = |text: &[u8]| Some(text.to_vec());
    // The version, what is answered, and what of it the sentence says.
    let cases = [
        (2, strange(&json!({})), "has version 2 of its interface"),
        (0, None, "has version 0 of its interface"),
        (1, None, "had no memory for an answer"),
        (1, bytes(b""), "cannot be read"),
        (1, bytes(b"accept"), "cannot be read"),
        (1, bytes(b"\xff\xfe{}"), "cannot be read"),
        (1, bytes(b"[]"), "cannot be read"),
        (1, bytes(b"\"schema verdict edits\""), "cannot be read"),
        (1, bytes(b"{}"), "cannot be read"),
        (1, bytes(&b"[".repeat(200_000)), ""),
        (
            1,
            strange(&json!({ "schema": "gpuos.pbs/2" })),
            "another form",
        ),
        (1, strange(&json!({ "schema": null })), "another form"),
        (1, strange(&json!({ "verdict": "maybe" })), "says 'maybe'"),
        (
            1,
            strange(&json!({ "verdict": ["accept"] })),
            "says ['accept']",
        ),
        (1, strange(&json!({ "verdict": null })), "says None"),
        (
            1,
            strange(&json!({ "verdict": "error", "message": "two\nlines\u{0}" })),
            "two lines ",
        ),
        (1, strange(&json!({ "edits": null })), ""),
        (1, strange(&json!({ "edits": 7 })), ""),
        (1, strange(&json!({ "edits": ["env"] })), ""),
        (1, strange(&json!({ "edits": [{ "set": ["env"] }] })), ""),
        (
            1,
            strange(&json!({ "edits": [variable, { "set": "argv", "value": "x" }] })),
            "wants 'argv' set",
        ),
        (1, strange(&json!({ "edits": [variable, {}] })), ""),
        (1, strange(&json!({ "notes": 7 })), ""),
        (1, strange(&json!({ "ask": 7 })), ""),
        (1, strange(&json!({ "ask": { "vnodes": 7 } })), ""),
    ];
    let launch = "pbs.event().type=execjob_launch\npbs.get_local_nodename()=n1\npbs.event().job.id=1.head\n\
                  pbs.event().job.exec_vnode=(n1:ngpus=1)\npbs.event().job.euser=root\npbs.event().env=\"\"\"A=1\"\"\"";
    let asking = format!("{launch}\npbs.event().job.Resource_List[gpuos_topology]=leaf");
    let others = [
        "pbs.event().type=exechost_periodic\npbs.get_local_nodename()=n1",
        "pbs.event().type=execjob_end\npbs.get_local_nodename()=n1\npbs.event().job.id=1.head\npbs.event().job.exec_vnode=(n1:ngpus=1)",
    ];
    let hook = Hook::with("{}");
    for (turn, (version, said, why)) in cases.iter().enumerate() {
        let (folder, name) = (hook.path(""), format!("case{turn}"));
        let swapped = Swapped::build(&folder, &name, *version, said.as_deref());
        hook_with(&hook, &swapped.library);
        let [goes_on, end] = others;
        let said = hook.run(&[launch, &asking, goes_on, end]);
        let sentence = "gpuos cannot decide about this: ";
        for told in [0, 2, 3].map(|at| &said[at]) {
            let log = told.strip_suffix(ACCEPTED).unwrap_or_default();
            let log = log
                .strip_prefix("log=")
                .and_then(|log| log.strip_prefix(sentence));
            assert!(log.is_some_and(|log| log.contains(why)), "{turn}: {told}");
        }
        // PBS deletes a job whose launch is refused, unless the hook says that it is to run again.
        let refused = &said[1];
        for part in [
            "accept=False",
            &format!("reject_msg={sentence}"),
            why,
            "_rerun=True",
        ] {
            assert!(refused.contains(part), "{turn}, {part}: {refused}");
        }
        assert!(!refused.contains("CUDA_VISIBLE_DEVICES"), "{refused}");
        assert_eq!(swapped.asked().is_empty(), *version != 1, "{turn}");
    }
}

#[test]
fn a_refusal_of_a_library_of_others_is_one_line() {
    if !has_python() {
        return;
    }
    let hook = Hook::with("{}");
    let parts = json!({ "verdict": "reject", "message": "no\npbs.event().accept=True\u{1b}[2J" });
    let swapped = Swapped::build(&hook.path(""), "lines", 1, Some(&answer(&parts)));
    hook_with(&hook, &swapped.library);
    let asking = "pbs.event().type=execjob_launch\npbs.get_local_nodename()=n1\n\
                  pbs.event().job.Resource_List[gpuos_topology]=leaf\npbs.event().env=\"\"\"A=1\"\"\"";
    let said = hook.one(asking);
    assert!(
        said.contains("reject_msg=no pbs.event().accept=True [2J\n"),
        "{said}"
    );
}

/// Not all three functions are there.
#[test]
fn a_library_that_lacks_a_function_is_none() {
    if !has_python() {
        return;
    }
    let hook = Hook::with("{}");
    let (source, library) = (hook.path("lacks.c"), hook.path("lacks.so"));
    let text = "unsigned gpuos_pbs_version(void) { return 1; }\nchar *gpuos_pbs_event(const char *json) { return (char *) json; }\n";
    std::fs::write(&source, text).expect("a source");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]);
    let done = compiler.arg(&library).arg(&source).status();
    assert!(done.expect("cc").success());
    hook_with(&hook, &library);
    let plain = "pbs.event().type=execjob_launch\npbs.get_local_nodename()=n1\npbs.event().env=\"\"\"A=1\"\"\"";
    let asking = format!("{plain}\npbs.event().job.Resource_List[gpuos_topology]=leaf");
    let said = hook.run(&[plain, &asking]);
    assert!(said[0].contains("cannot be loaded") && said[0].ends_with(ACCEPTED));
    assert!(said[1].contains("accept=False") && said[1].contains("gpuos_pbs_free"));
}
