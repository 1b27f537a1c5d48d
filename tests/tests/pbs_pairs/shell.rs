//! A shell that runs one command after the other in a lab: entering a host once is cheaper than each time.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use gpuos_lab::pbs::PbsLab;

/// Begins the last line of what a command writes.
const END: &str = "==end ";

/// A shell on the head of a lab.
pub struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    /// That of a user, or of root.
    pub fn start(lab: &PbsLab, user: &str) -> Shell {
        let user = (user != "root").then_some(user);
        let command = lab.command_on("head", user, "sh");
        let mut command = command.expect("the head is there");
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().expect("sh runs");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Shell {
            child,
            input,
            output,
        }
    }

    /// What a command writes; an error where it fails.
    pub fn run(&mut self, line: &str) -> Result<String, String> {
        // The status is that of the command, whatever comes after it.
        let whole = format!("( {line}\n) </dev/null 2>&1; status=$?; echo; echo {END}$status");
        writeln!(self.input, "{whole}").expect("it reads");
        let mut said = String::new();
        loop {
            let mut next = String::new();
            let read = self.output.read_line(&mut next).expect("it writes");
            assert!(read > 0, "the shell has ended at {line}");
            if let Some(status) = next.strip_prefix(END) {
                let said = said.trim().to_owned();
                return if status.trim() == "0" {
                    Ok(said)
                } else {
                    Err(said)
                };
            }
            said += &next;
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
