//! Programs that gpuosd runs with a user's rights: they start in a control group of their own, not in gpuosd's.
//!
//! A program that a user could trace is his from its first instruction. So this program, with [`FLAG`], enters the group as root, takes the
//! user's rights, and only then becomes that program: its number stays the same.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use gpuos_host::steps::own_groups::service::enter;

use crate::as_user;

/// The first word. After it come how many files there are, these files, the user, the group, and the program with its words.
pub const FLAG: &str = "--in-group";

/// Exit codes, and why the program was not started, in clauses.
const WHY: [(u8, &str); 4] = [
    (
        120,
        "gpuosd and the process that starts it are of different releases",
    ),
    (121, "the kernel does not let it into its control group"),
    (122, "the rights of its user cannot be taken"),
    (123, "it cannot be executed"),
];

/// A user, by numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct User {
    /// His number.
    pub uid: u32,
    /// His group.
    pub gid: u32,
}

/// What starts a program so. `own` is this program, `files` are those by which a process enters the group.
pub fn command(own: &Path, files: &[PathBuf], user: User, program: &Path) -> Command {
    let mut command = Command::new(own);
    command.arg(FLAG).arg(files.len().to_string()).args(files);
    command.args([user.uid.to_string(), user.gid.to_string()]);
    command.arg(program);
    command
}

/// Why a program was not started, by how the process ended that was to become it.
pub fn why(status: ExitStatus) -> Option<&'static str> {
    let code = u8::try_from(status.code()?).ok()?;
    WHY.iter().find(|(of, _)| *of == code).map(|(_, why)| *why)
}

/// The process, with the words after [`FLAG`]. It returns only where the program does not start.
pub fn run(words: &[OsString]) -> ExitCode {
    let [usage, group, rights, execute] = WHY.map(|(code, _)| ExitCode::from(code));
    let number = |word: &OsString| word.to_str()?.parse::<u32>().ok();
    let read = || {
        let (count, rest) = words.split_first()?;
        let (files, rest) = rest.split_at_checked(number(count)? as usize)?;
        let [uid, gid, program, words @ ..] = rest else {
            return None;
        };
        Some((files, (number(uid)?, number(gid)?), program, words))
    };
    let Some((files, (uid, gid), program, words)) = read() else {
        return usage;
    };
    if enter(files.iter().map(Path::new)).is_err() {
        return group;
    }
    if as_user::become_user(uid, gid).is_err() {
        return rights;
    }
    let _ = Command::new(program).args(words).exec();
    execute
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_none_start_nothing() {
        for words in [
            &[][..],
            &["1", "/f", "0", "0"],
            &["2", "/f"],
            &["0", "x", "0", "/bin/true"],
        ] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert_eq!(
                format!("{:?}", run(&words)),
                format!("{:?}", ExitCode::from(120))
            );
        }
        let missing = ["1", "/none/cgroup.procs", "0", "0", "/bin/true"].map(OsString::from);
        assert_eq!(
            format!("{:?}", run(&missing)),
            format!("{:?}", ExitCode::from(121))
        );
    }
}
