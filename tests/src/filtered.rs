//! `gpuos-filtered RULES PROGRAM ARG...`: becomes the program, under the rules of [`filter::named`].

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use gpuos_tests::filter;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let rules = args.next().and_then(|name| filter::named(name.to_str()?));
    let (Some(rules), Some(program)) = (rules, args.next()) else {
        eprintln!("gpuos-filtered: which rules, and which program?");
        return ExitCode::from(2);
    };
    let error = match filter::forbid(&rules) {
        Ok(()) => Command::new(&program).args(args).exec(),
        Err(error) => error,
    };
    eprintln!("gpuos-filtered: {}: {error}", program.display());
    ExitCode::FAILURE
}
